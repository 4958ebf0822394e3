// The FP32 row of a CTA becomes a row of a GEMM's input.
#pragma once

#include "gemm/activation_scale.h"
#include "gemm/gemm_input.h"
#include "gemm/packed_fp8/layout.h"
#include "ops/cuda/row.cuh"
#include "ptx/convert.cuh"

namespace quaver::device_ops {

[[nodiscard]] __device__ __forceinline__ float max_magnitude(const float (&values)[kVector]) {
  float largest = 0.0F;
#pragma unroll
  for (const float value : values) largest = fmaxf(largest, fabsf(value));
  return largest;
}

/// value * inverse as E4M3 codes.
[[nodiscard]] __device__ __forceinline__ uint2 to_codes(const float (&values)[kVector], float inverse) {
  return {ptx::to_e4m3x4(values[0] * inverse, values[1] * inverse, values[2] * inverse, values[3] * inverse),
          ptx::to_e4m3x4(values[4] * inverse, values[5] * inverse, values[6] * inverse, values[7] * inverse)};
}

/// Scale of the 128 columns that the thread's half warp has in vector `v`; one of its threads stores it.
__device__ __forceinline__ float block_scale(const GemmInput& out, const float (&values)[kVector], int64_t token,
                                             int column, bool stored) {
  const float scale = activation_scale(reduce_lanes<packed_fp8::kChunk / kVector>(max_magnitude(values), Max{}));
  if (stored && column % packed_fp8::kChunk == 0) {
    out.scales[column / packed_fp8::kChunk * out.scale_stride + token] = scale;
  }
  return scale;
}

/// Scale of the whole row, or of the checkpoint, stored once. Not for blocks.
template <class AnyRow>
__device__ __forceinline__ float row_scale(const GemmInput& out, const AnyRow& row, int64_t token, Scratch& scratch) {
  if (out.kind == InputKind::kStatic) {
    if (token == 0 && threadIdx.x == 0) out.scales[0] = out.static_scale;
    return out.static_scale;
  }
  float largest = 0.0F;
#pragma unroll
  for (int v = 0; v < AnyRow::kCount; ++v) largest = fmaxf(largest, max_magnitude(row.get(v).values));
  const float scale = activation_scale(reduce_cta(largest, scratch, Max{}));
  if (threadIdx.x == 0) out.scales[token] = scale;
  return scale;
}

template <class AnyRow>
__device__ __forceinline__ void store_bf16_row(Bf16* out, const AnyRow& row, int columns) {
#pragma unroll
  for (int v = 0; v < AnyRow::kCount; ++v) {
    const int column = first_column(v);
    if (column < columns) store_vector(out + column, to_bf16_vector(row.get(v)));
  }
}

/// Row `token` of the input of K = `columns`; in E4M3 with zeros, which the row has there, up to a multiple of 128
/// columns. By the whole CTA.
template <class AnyRow>
__device__ __forceinline__ void store_row(const GemmInput& out, const AnyRow& row, int64_t token, int columns,
                                          Scratch& scratch) {
  if (out.kind == InputKind::kBf16) {
    store_bf16_row(out.rows + token * columns, row, columns);
    return;
  }
  const int padded = static_cast<int>(packed_fp8::num_chunks(columns)) * packed_fp8::kChunk;
  uint8_t* const packed_row = out.packed + packed_fp8::packed_offset(token, 0, columns);
  const bool blocks = out.kind == InputKind::kPerBlock;
  float inverse = blocks ? 0.0F : 1.0F / row_scale(out, row, token, scratch);
#pragma unroll
  for (int v = 0; v < AnyRow::kCount; ++v) {
    const int column = first_column(v);
    const Vector vector = row.get(v);
    if (blocks) inverse = 1.0F / block_scale(out, vector.values, token, column, column < padded);
    if (column >= padded) continue;
    *reinterpret_cast<uint2*>(packed_row + static_cast<int>(packed_fp8::packed_offset(0, column, columns))) =
        to_codes(vector.values, inverse);
  }
}

}  // namespace quaver::device_ops
