// Norm, rotation and append of one step's Q, K and V. A warp takes some heads of the same kind, of as many neighbouring
// tokens as it has room for, with angles and norm weights in registers. V in FP8 pages has ways of its own: of few
// tokens v_codes.cuh, of many CTAs at the front of the grid that write tiles (v_tile.cuh).
#pragma once

#include "ops/cuda/qkv_heads.cuh"
#include "ops/cuda/v_codes.cuh"
#include "ops/cuda/v_tile.cuh"
#include "ptx/launch.cuh"

namespace quaver::device_ops {

/// Heads of one kind that a warp takes, numbered as in qkv.
struct HeadRange {
  enum class Kind : uint8_t { kQ, kK, kV };
  Kind kind = Kind::kQ;
  int begin = 0;  ///< in its kind
  int end = 0;
  int first = 0;  ///< head of qkv where the kind begins
};

[[nodiscard]] __device__ __forceinline__ HeadRange head_range(const QkvParameters& p, int chunk) {
  using Kind = HeadRange::Kind;
  const auto range = [](Kind kind, int number, int each, int heads, int first) {
    const int begin = number * each;
    return HeadRange{.kind = kind, .begin = begin, .end = min(begin + each, heads), .first = first};
  };
  if (chunk < p.v_chunks) return range(Kind::kV, chunk, p.v_heads_per_warp, p.num_kv_heads(), p.v_head);
  chunk -= p.v_chunks;
  if (chunk < p.q_chunks) return range(Kind::kQ, chunk, p.heads_per_warp, p.num_q_heads, 0);
  return range(Kind::kK, chunk - p.q_chunks, p.heads_per_warp, p.num_kv_heads(), p.num_q_heads);
}

/// Where a lane's part of the first head goes, and how far it is to the next head's, in bytes.
struct Destination {
  uint8_t* low = nullptr;  ///< null: nowhere
  uint8_t* high = nullptr;
  int64_t step = 0;
};

/// Q goes back to qkv; K, and V of BF16 pages, to the page of the token.
[[nodiscard]] __device__ __forceinline__ Destination destination(const QkvParameters& p, const HeadRange& range,
                                                                 int64_t token, int64_t slot, int column) {
  const int half = p.head_dim() / 2;
  if (range.kind == HeadRange::Kind::kQ) {
    Bf16* const row = p.row(token, range.begin) + column;
    return {.low = reinterpret_cast<uint8_t*>(row),
            .high = reinterpret_cast<uint8_t*>(row + half),
            .step = int64_t{p.head_dim()} * int64_t{sizeof(Bf16)}};
  }
  if (slot < 0) return {};
  const auto bytes = [&](int dim) {
    return range.kind == HeadRange::Kind::kK ? p.target.k(slot, range.begin, dim) : p.target.v(slot, range.begin, dim);
  };
  return {.low = bytes(column), .high = bytes(column + half), .step = page_format::head_bytes(p.target.layout)};
}

__device__ __forceinline__ void store_head(const Destination& to, const HeadPart& part, bool codes, float inverse) {
  if (codes) {
    *reinterpret_cast<uint2*>(to.low) = to_codes(part.low.values, inverse);
    *reinterpret_cast<uint2*>(to.high) = to_codes(part.high.values, inverse);
  } else {
    *reinterpret_cast<uint4*>(to.low) = to_bf16_vector(part.low);
    *reinterpret_cast<uint4*>(to.high) = to_bf16_vector(part.high);
  }
}

/// `kLanes` lanes have a head: a power of two, at least head_dim / 16. `item` counts chunks of heads, then tokens.
template <int kLanes>
__device__ __forceinline__ void write_heads(const QkvParameters& p, int item) {
  constexpr int kTokens = 32 / kLanes;
  const int chunks = p.q_chunks + p.k_chunks + p.v_chunks;
  const auto lane = static_cast<int>(threadIdx.x % 32);
  const int64_t first = int64_t{item / chunks} * kTokens;
  const int64_t token = first + lane / kLanes;
  const HeadRange range = head_range(p, item % chunks);
  const bool is_v = range.kind == HeadRange::Kind::kV;
  if (is_v && p.target.layout.dtype == KvDtype::kE4M3) {
    write_v_codes<kLanes>(p, first, range.begin);
    return;
  }
  const int column = lane % kLanes * kVector;
  const int half = p.head_dim() / 2;
  const bool active = token < p.num_tokens && column < half;
  const bool rotates = active && !is_v && column < p.table_pairs;
  const float* const table = p.rope_table + 2 * (token * p.table_pairs + column);
  HeadPart weights = ones();
  if (active && !is_v) {
    const float* const norm = range.kind == HeadRange::Kind::kQ ? p.q_norm : p.k_norm;
    weights = {load_constants(norm + column), load_constants(norm + column + half)};
  }
  const bool codes = range.kind == HeadRange::Kind::kK && p.target.layout.dtype == KvDtype::kE4M3;
  // Lane i divides for the i-th head of the range.
  const float inverses =
      append::inverse_scale(codes ? p.k_scale : nullptr, 1, min(range.begin + lane, p.num_kv_heads() - 1));
  Destination to;
  if (active) to = destination(p, range, token, p.slot(token), column);
  const bool stored = to.low != nullptr;
  ptx::grid_dependency_wait();
  if (first >= p.num_tokens) return;
  const Bf16* const row = p.row(token, range.first + range.begin) + column;
  const int heads = range.end - range.begin;
  HeadPair ahead = load_pair(row, p.head_dim(), active ? heads : 0);
  Angles angles{};
  if (rotates) angles = load_angles(table);
  for (int i = 0; i < heads; i += 2) {
    const HeadPair now = ahead;
    ahead = load_pair(row + (i + 2) * p.head_dim(), p.head_dim(), active ? heads - i - 2 : 0);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (i + j == heads) continue;
      HeadPart part = now.heads[j].get();
      if (!is_v || p.v_norm) part = normed<kLanes>(part, weights, p.inverse_dim, p.eps);
      if (rotates) rotate(part, angles);
      const float inverse = __shfl_sync(~0U, inverses, i + j);
      if (stored) store_head(to, part, codes, inverse);
      to.low += to.step;
      to.high += to.step;
    }
  }
}

template <int kLanes>
__global__ void __launch_bounds__(kQkvThreads, kQkvCtasPerSm)
    quaver_qkv_append(const __grid_constant__ QkvParameters p) {
  ptx::launch_dependents();
  const auto block = static_cast<int>(blockIdx.x);
  if (block < p.v_ctas) {
    write_v_tile<kLanes>(p, block);
  } else {
    write_heads<kLanes>(p, (block - p.v_ctas) * kQkvWarps + static_cast<int>(threadIdx.x / 32));
  }
}

}  // namespace quaver::device_ops
