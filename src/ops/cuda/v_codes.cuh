// V of a few tokens by a warp, one head: normed, as codes through shared memory to FP8 pages byte by byte, a lane a
// column in 32. Tiles (v_tile.cuh) write whole pieces of 16 tokens instead; up to 128 tokens there are fewer of them
// than SMs.
#pragma once

#include "ops/cuda/qkv_heads.cuh"
#include "ptx/launch.cuh"

namespace quaver::device_ops {

/// Tokens of a step up to which V goes this way.
inline constexpr int kFewTokens = 128;

/// Head `head` of tokens first … first + 32 / kLanes - 1.
template <int kLanes>
__device__ __forceinline__ void write_v_codes(const QkvParameters& p, int64_t first, int head) {
  constexpr int kTokens = 32 / kLanes;
  constexpr int kColumns = 2 * kVector * kLanes;  // of a token in `codes`, at least head_dim
  __shared__ uint8_t codes[kQkvWarps][kTokens * kColumns];
  const auto lane = static_cast<int>(threadIdx.x % 32);
  const int64_t token = first + lane / kLanes;
  const int half = p.head_dim() / 2;
  const int column = lane % kLanes * kVector;
  const bool active = token < p.num_tokens && column < half;
  const float inverse = append::inverse_scale(p.v_scale, 1, head);
  uint8_t* pages[kTokens];  // the lane's first column of each token; null: it is not stored
#pragma unroll
  for (int g = 0; g < kTokens; ++g) {
    const int64_t slot = p.slot(first + g);
    pages[g] = slot < 0 ? nullptr : p.target.v(slot, head, lane);
  }
  ptx::grid_dependency_wait();
  RawHeadPart raw;
  if (active) raw = load_head(p.row(token, p.v_head + head) + column, half);
  HeadPart part = raw.get();
  if (p.v_norm) part = normed<kLanes>(part, ones(), p.inverse_dim, p.eps);
  uint8_t* const warp_codes = codes[threadIdx.x / 32];
  if (active) {
    uint8_t* const to = warp_codes + lane / kLanes * kColumns + column;
    *reinterpret_cast<uint2*>(to) = to_codes(part.low.values, inverse);
    *reinterpret_cast<uint2*>(to + half) = to_codes(part.high.values, inverse);
  }
  __syncwarp();
#pragma unroll
  for (int at = 0; at < kTokens * kColumns; at += 32) {
    uint8_t* const page = pages[at / kColumns];
    const int from = at % kColumns;
    if (page != nullptr && from + lane < p.head_dim()) page[from * append::kVBlock] = warp_codes[at + lane];
  }
}

}  // namespace quaver::device_ops
