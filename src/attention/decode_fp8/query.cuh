// Q in shared memory: BF16 rows become hi + lo/16 in E4M3 with one power-of-two scale a row. Rows along M; those of
// items with few rows are placed by few_rows_query.cuh.
#pragma once

#include <cuda_bf16.h>

#include "attention/decode_fp8/params.h"
#include "attention/decode_fp8/traits.h"
#include "attention/kernel_parts.cuh"
#include "ptx/barrier.cuh"
#include "ptx/convert.cuh"

namespace quaver::decode_fp8 {

/// Four neighbouring values of a row, and every 128 columns four more, per lane of a warp.
template <int kHeadDim>
struct RawRow {
  uint2 values[(kHeadDim / 4 + 31) / 32];
};

template <class Traits>
__device__ __forceinline__ RawRow<Traits::kHeadDim> load_row(const Parameters& p, const WorkItem& item, int row) {
  const int group = p.shape.group;
  const __nv_bfloat16* source = p.q + (item.query_begin + tiles::row_token(row, group)) * p.q_strides.token +
                                (item.head * group + tiles::row_head(row, group)) * p.q_strides.head;
  RawRow<Traits::kHeadDim> raw;
  int column = static_cast<int>(threadIdx.x) % 32 * 4;
#pragma unroll
  for (uint2& values : raw.values) {
    values = make_uint2(0, 0);
    if (column < Traits::kHeadDim) values = *reinterpret_cast<const uint2*>(source + column);
    column += 128;
  }
  return raw;
}

/// Writes a row as hi and, `low_offset` bytes further, lo codes in K-major core matrices. Returns the power of two that
/// it was divided by.
template <class Traits>
__device__ __forceinline__ float store_row(const RawRow<Traits::kHeadDim>& raw, uint8_t* destination, int low_offset,
                                           uint32_t low_part_mask) {
  constexpr int kGroupsPerLane = (Traits::kHeadDim / 4 + 31) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float values[kGroupsPerLane][4];
  float largest = 0.0F;
#pragma unroll
  for (int i = 0; i < kGroupsPerLane; ++i) {
    const float2 ab = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&raw.values[i].x));
    const float2 cd = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&raw.values[i].y));
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
#pragma unroll
  for (int i = 0; i < kGroupsPerLane; ++i) {
    const int column = 4 * (lane + 32 * i);
    if (column >= Traits::kHeadDim) break;
    const SplitCodes codes = split_e4m3x4(values[i][0] * inverse, values[i][1] * inverse, values[i][2] * inverse,
                                          values[i][3] * inverse, low_part_mask);
    uint8_t* core = destination + (column / 16) * 128 + column % 16;
    *reinterpret_cast<uint32_t*>(core) = codes.high;
    *reinterpret_cast<uint32_t*>(core + low_offset) = codes.low;
  }
  return __int_as_float((exponent + 127) << 23);
}

/// Byte of Q[row] (hi part) in shared memory; the lo part is 8 rows, 8 * D bytes, further.
/// `rotation` moves the rows to other warps, so that the CTAs of an SM do not all load the same warp scheduler.
template <class Traits>
__device__ __forceinline__ int query_offset(int row, int rotation) {
  return ((row / 8 + rotation) % 4) * 16 * Traits::kHeadDim + (row % 8) * 16;
}

/// All consumer warps together: the rows of one item.
template <class Traits>
__device__ __forceinline__ void load_query(const Parameters& p, const WorkItem& item, SharedState<Traits>& state,
                                           uint8_t* query, int rotation) {
  for (int row = static_cast<int>(threadIdx.x) / 32; row < item.rows; row += Traits::kConsumers / 32) {
    const float scale = store_row<Traits>(load_row<Traits>(p, item, row), query + query_offset<Traits>(row, rotation),
                                          8 * Traits::kHeadDim, p.low_part_mask);
    if (threadIdx.x % 32 == 0) state.query_scale[row] = scale;
  }
  ptx::fence_proxy_async_shared();
}

}  // namespace quaver::decode_fp8
