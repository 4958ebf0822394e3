// V of 16 tokens and some heads by a CTA: normed and as codes into shared memory, from there to FP8 pages, whose
// 16-byte pieces hold one column of 16 tokens. Tokens that fill a block of slots leave in whole pieces, others byte by
// byte.
#pragma once

#include "ops/cuda/qkv_heads.cuh"
#include "ptx/launch.cuh"

namespace quaver::device_ops {

/// Codes of 16 tokens of a head, natural order.
template <int kLanes>
struct VCodes {
  alignas(16) uint8_t rows[append::kVBlock][2 * kVector * kLanes];
};

/// A thread's share of 16 tokens of a head: rows thread / kLanes, …, every 256 / kLanes-th.
template <int kLanes>
struct VPart {
  static constexpr int kStep = kQkvThreads / kLanes;
  static constexpr int kRows = kStep < append::kVBlock ? append::kVBlock / kStep : 1;
  RawHeadPart rows[kRows];
};

/// 16 tokens from `first` on, those whose bit of `wanted` is set.
struct VTokens {
  int64_t first = 0;
  uint32_t wanted = 0;
};

template <int kLanes>
[[nodiscard]] __device__ __forceinline__ VPart<kLanes> load_v(const QkvParameters& p, const VTokens& tokens, int head,
                                                              int end_head) {
  using Part = VPart<kLanes>;
  const int half = p.head_dim() / 2;
  const auto thread = static_cast<int>(threadIdx.x);
  const int column = thread % kLanes * kVector;
  Part part;
#pragma unroll
  for (int k = 0; k < Part::kRows; ++k) {
    const int row = thread / kLanes + k * Part::kStep;
    const bool active = row < append::kVBlock && (tokens.wanted >> row & 1U) != 0 && column < half && head < end_head;
    if (active) part.rows[k] = load_head(p.row(tokens.first + row, p.v_head + head) + column, half);
  }
  return part;
}

/// Norms and quantises a head into `codes`; rows that nobody wanted are zeros.
template <int kLanes>
__device__ __forceinline__ void fill_codes(const QkvParameters& p, const VPart<kLanes>& v, int head,
                                           VCodes<kLanes>& codes) {
  using Part = VPart<kLanes>;
  const int half = p.head_dim() / 2;
  const auto thread = static_cast<int>(threadIdx.x);
  const int column = thread % kLanes * kVector;
  const float inverse = append::inverse_scale(p.v_scale, 1, head);
#pragma unroll
  for (int k = 0; k < Part::kRows; ++k) {
    const int row = thread / kLanes + k * Part::kStep;
    HeadPart part = v.rows[k].get();
    if (p.v_norm) part = normed<kLanes>(part, ones(), p.inverse_dim, p.eps);
    if (row >= append::kVBlock || column >= half) continue;
    *reinterpret_cast<uint2*>(&codes.rows[row][column]) = to_codes(part.low.values, inverse);
    *reinterpret_cast<uint2*>(&codes.rows[row][column + half]) = to_codes(part.high.values, inverse);
  }
}

/// write(head, codes) for each head, whose codes are complete by then. By the whole CTA, with a barrier at the end.
template <int kLanes, class Write>
__device__ __forceinline__ void for_v_heads(const QkvParameters& p, const VTokens& tokens, int begin, int end,
                                            VCodes<kLanes> (&codes)[2], Write write) {
  VPart<kLanes> ahead[2] = {load_v<kLanes>(p, tokens, begin, end), load_v<kLanes>(p, tokens, begin + 1, end)};
  for (int head = begin; head < end; head += 2) {
    const VPart<kLanes> now[2] = {ahead[0], ahead[1]};
#pragma unroll
    for (int j = 0; j < 2; ++j) ahead[j] = load_v<kLanes>(p, tokens, head + 2 + j, end);
    // One barrier a head: whoever fills a buffer again has passed the other's barrier, after everyone's last read.
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (head + j == end) continue;
      fill_codes(p, now[j], head + j, codes[j]);
      __syncthreads();
      write(head + j, codes[j]);
    }
  }
  __syncthreads();
}

/// 16 codes of a column in the order of a page's piece.
template <int kLanes>
[[nodiscard]] __device__ __forceinline__ uint4 v_piece(const VCodes<kLanes>& codes, int column) {
  return append::sixteen_codes([&](int i) { return codes.rows[page_format::v_position_token(i)][column]; });
}

/// CTA `block` of those for V: the heads of 16 tokens, v_tile_heads at a time, then the next 16.
template <int kLanes>
__device__ __forceinline__ void write_v_tile(const QkvParameters& p, int block) {
  __shared__ VCodes<kLanes> codes[2];
  const auto thread = static_cast<int>(threadIdx.x);
  const int64_t first = int64_t{block / p.v_tile_parts} * append::kVBlock;
  const int begin = block % p.v_tile_parts * p.v_tile_heads;
  const int end = min(begin + p.v_tile_heads, p.num_kv_heads());
  ptx::grid_dependency_wait();
  const append::VTile tile = append::find_blocks([&](int64_t token) { return p.slot(token); }, first, thread % 32);
  if (tile.whole != 0) {
    const int at = __ffs(static_cast<int>(tile.whole)) - 1;
    const int64_t slot = __shfl_sync(~0U, tile.slot, at);
    const auto write_pieces = [&](int head, const VCodes<kLanes>& head_codes) {
      for (int column = thread; column < p.head_dim(); column += kQkvThreads) {
        *reinterpret_cast<uint4*>(p.target.v(slot, head, column)) = v_piece(head_codes, column);
      }
    };
    for_v_heads<kLanes>(p, {.first = first - append::kVBlock + at, .wanted = 0xFFFFU}, begin, end, codes, write_pieces);
  }
  if (tile.ragged == 0) return;
  const uint32_t ragged = tile.ragged >> append::kVBlock;
  const auto write_bytes = [&](int head, const VCodes<kLanes>& head_codes) {
    for (int row = 0; row < append::kVBlock; ++row) {
      const int64_t slot = __shfl_sync(~0U, tile.slot, append::kVBlock + row);
      if ((ragged >> row & 1U) == 0) continue;
      for (int column = thread; column < p.head_dim(); column += kQkvThreads) {
        *p.target.v(slot, head, column) = head_codes.rows[row][column];
      }
    }
  };
  for_v_heads<kLanes>(p, {.first = first, .wanted = ragged}, begin, end, codes, write_bytes);
}

}  // namespace quaver::device_ops
