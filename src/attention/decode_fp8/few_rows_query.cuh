// Up to 8 query rows: Q in shared memory as hi + lo/16 in E4M3 with one power-of-two scale a row, and what a thread
// knows about its rows.
#pragma once

#include <cuda_bf16.h>

#include "attention/decode_fp8/params.h"
#include "attention/decode_fp8/traits.h"
#include "attention/kernel_parts.cuh"
#include "ptx/barrier.cuh"

namespace quaver::decode_fp8::few_rows {

/// What a thread knows about its query rows.
template <class Traits>
struct QueryRows {
  float scale[Traits::kRowsPerThread];  ///< accumulator to logit in log2 units
  int first_key[Traits::kRowsPerThread];
  int last_key[Traits::kRowsPerThread];
  int all_first;  ///< keys that every row of the item sees
  int all_last;
};

/// All consumer warps together: the rows of one item as hi + lo/16, K-major core matrices of four rows (hi, lo, hi, …).
template <class Traits>
__device__ __forceinline__ void load_query(const Parameters& p, const WorkItem& item, SharedState<Traits>& state,
                                           uint8_t* query) {
  constexpr int kGroups = Traits::kHeadDim / 4;  // of four values
  constexpr int kGroupsPerLane = (kGroups + 31) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int group = p.shape.group;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  constexpr int kWarps = Traits::kConsumers / 32;
  uint2 raw[Traits::kRows / kWarps][kGroupsPerLane];
#pragma unroll
  for (int r = 0; r < Traits::kRows / kWarps; ++r) {  // all loads in flight before the first is waited for
    const int row = kWarps * r + warp;
    const __nv_bfloat16* source = p.q + (item.query_begin + tiles::row_token(row, group)) * p.q_strides.token +
                                  (item.head * group + tiles::row_head(row, group)) * p.q_strides.head;
#pragma unroll
    for (int i = 0; i < kGroupsPerLane; ++i) {
      const int column = 4 * (lane + 32 * i);
      raw[r][i] = make_uint2(0, 0);
      if (row < item.rows && column < Traits::kHeadDim) raw[r][i] = *reinterpret_cast<const uint2*>(source + column);
    }
  }
#pragma unroll
  for (int r = 0; r < Traits::kRows / kWarps; ++r) {
    const int row = kWarps * r + warp;
    float values[kGroupsPerLane][4];
    float largest = 0.0F;
#pragma unroll
    for (int i = 0; i < kGroupsPerLane; ++i) {
      const float2 ab = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&raw[r][i].x));
      const float2 cd = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&raw[r][i].y));
      values[i][0] = ab.x;
      values[i][1] = ab.y;
      values[i][2] = cd.x;
      values[i][3] = cd.y;
#pragma unroll
      for (float value : values[i]) largest = fmaxf(largest, fabsf(value));
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, distance));
    }
    const int exponent = query_exponent(largest);
    const float inverse = __int_as_float((127 - exponent) << 23);
    uint8_t* destination = query + row / 4 * 8 * Traits::kHeadDim + row % 4 * 32;
#pragma unroll
    for (int i = 0; i < kGroupsPerLane; ++i) {
      const int column = 4 * (lane + 32 * i);
      if (column >= Traits::kHeadDim) break;
      const SplitCodes codes = split_e4m3x4(values[i][0] * inverse, values[i][1] * inverse, values[i][2] * inverse,
                                            values[i][3] * inverse, p.low_part_mask);
      uint8_t* core = destination + (column / 16) * 128 + column % 16;
      *reinterpret_cast<uint32_t*>(core) = codes.high;
      *reinterpret_cast<uint32_t*>(core + 16) = codes.low;
    }
    if (lane == 0) state.query_scale[row] = __int_as_float((exponent + 127) << 23);
  }
  ptx::fence_proxy_async_shared();
}

template <class Traits>
__device__ __forceinline__ void make_rows(const Parameters& p, const WorkItem& item, const SharedState<Traits>& state,
                                          QueryRows<Traits>& rows) {
  float scale = p.scale_log2;
  if (p.k_scale != nullptr) scale *= p.k_scale[item.head];
  scale *= p.q_descale.at(item.sequence, item.head) * p.k_descale.at(item.sequence, item.head);
  const tiles::KeyRange all = tiles::visible_keys(p.shape.mask, item.kv_len, item.query_len, 0, item.query_len).all;
  rows.all_first = static_cast<int>(all.first);
  rows.all_last = static_cast<int>(all.last);
#pragma unroll
  for (int j = 0; j < Traits::kRowsPerThread; ++j) {
    const int row = 4 * j + static_cast<int>(threadIdx.x) % 4;
    const int token = row < item.rows ? tiles::row_token(row, p.shape.group) : 0;
    const tiles::KeyRange own = tiles::visible_keys(p.shape.mask, item.kv_len, item.query_len, token);
    rows.scale[j] = scale * state.query_scale[row];
    rows.first_key[j] = static_cast<int>(own.first);
    rows.last_key[j] = static_cast<int>(own.last);
  }
}

}  // namespace quaver::decode_fp8::few_rows
