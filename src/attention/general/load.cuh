// K and V of one kv head as stored in pages, for a warp: a lane reads a whole key for QK, one column of V for PV.
#pragma once

#include <cstdint>

#include "core/bf16.h"
#include "kv_cache/page_format.h"
#include "ptx/convert.cuh"

namespace quaver::general {

inline constexpr int kGroup = 16;  ///< tokens that every page size holds together and an FP8 page interleaves

/// The 16 E4M3 values of 16 bytes, in byte order.
__device__ __forceinline__ void decode16(uint4 bytes, float (&values)[16]) {
  const uint32_t words[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float2 pair = ptx::from_e4m3x2(static_cast<uint16_t>(words[i / 2] >> (16 * (i % 2))));
    values[2 * i] = pair.x;
    values[2 * i + 1] = pair.y;
  }
}

/// q · k over the head dim in FP32; `k` begins at the key's first element. Four sums, so that rounding errors of long
/// rows and the latency of the FMAs are a quarter.
template <KvDtype kDtype>
__device__ __forceinline__ float dot(const float* q, const uint8_t* k, int dim) {
  float sums[4] = {};
  if constexpr (kDtype == KvDtype::kE4M3) {  // 16 dims every 128 bytes: page_format.h
    for (int first = 0; first < dim; first += 16) {
      float values[16];
      decode16(__ldg(reinterpret_cast<const uint4*>(k + 8 * first)), values);
#pragma unroll
      for (int i = 0; i < 16; ++i) sums[i % 4] = fmaf(q[first + i], values[i], sums[i % 4]);
    }
  } else {
    const auto* row = reinterpret_cast<const Bf16*>(k);
    int d = 0;
    for (; d + 4 <= dim; d += 4) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[i] = fmaf(q[d + i], to_float(row[d + i]), sums[i]);
    }
    for (; d < dim; ++d) sums[0] = fmaf(q[d], to_float(row[d]), sums[0]);
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/// sum + Σ weights[u] * V[token u][dim] over the tokens of a 16-token group that `visible` names (bit u). The others
/// are not multiplied: 0 * NaN must not reach a result. `v` is where the group's first token has `dim`.
template <KvDtype kDtype>
__device__ __forceinline__ float add_group(float sum, const float* weights, uint32_t visible, const uint8_t* v,
                                           int head_dim) {
  if constexpr (kDtype == KvDtype::kE4M3) {
    float values[16];
    decode16(__ldg(reinterpret_cast<const uint4*>(v)), values);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const int u = page_format::v_position_token(i);
      if ((visible >> u & 1U) != 0) sum = fmaf(weights[u], values[i], sum);
    }
  } else {
    const auto* column = reinterpret_cast<const Bf16*>(v);
#pragma unroll
    for (int u = 0; u < kGroup; ++u) {
      if ((visible >> u & 1U) != 0) sum = fmaf(weights[u], to_float(column[u * head_dim]), sum);
    }
  }
  return sum;
}

}  // namespace quaver::general
