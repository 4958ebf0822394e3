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

/// The row of `token` in a GEMM's input of K = `columns`. Token -1: nothing is stored.
struct OutputRow {
  const GemmInput& out;
  int token;
  int columns;
  [[nodiscard]] __device__ bool exists() const { return token >= 0; }
};

/// Scale of chunk `chunk` of the row, of which 16 lanes have a vector each; one of them stores it.
__device__ __forceinline__ float block_scale(const OutputRow& to, const float (&values)[kVector], int chunk,
                                             bool stored) {
  const float scale = activation_scale(reduce_lanes<packed_fp8::kChunk / kVector>(max_magnitude(values), Max{}));
  if (stored && threadIdx.x % 16 == 0) to.out.scales[chunk * to.out.scale_stride + to.token] = scale;
  return scale;
}

/// Scale of the whole row, or of the checkpoint, stored once. Not for blocks.
template <class Share, class AnyRow>
__device__ __forceinline__ float row_scale(const OutputRow& to, const AnyRow& row, Scratch<Share>& scratch) {
  if (to.out.kind == InputKind::kStatic) {
    if (to.token == 0 && threadIdx.x == 0) to.out.scales[0] = to.out.static_scale;
    return to.out.static_scale;
  }
  float largest = 0.0F;
#pragma unroll
  for (int v = 0; v < AnyRow::kCount; ++v) largest = fmaxf(largest, max_magnitude(row.get(v).values));
  const float scale = activation_scale(reduce_row(largest, scratch, Max{}));
  const bool first_warp = threadIdx.x < 32 && blockIdx.x % Share::kCtas == 0;
  if (first_warp && threadIdx.x % kTokenLanes<Share> == 0 && to.exists()) to.out.scales[to.token] = scale;
  return scale;
}

template <class Share, class AnyRow>
__device__ __forceinline__ void store_bf16_row(Bf16* out, const AnyRow& row, int columns) {
#pragma unroll
  for (int v = 0; v < AnyRow::kCount; ++v) {
    const int column = first_column<Share>(v);
    if (column < columns) store_vector(out + column, to_bf16_vector(row.get(v)));
  }
}

/// In E4M3 with zeros, which the row has there, up to a multiple of 128 columns. By the whole CTA.
template <class Share, class AnyRow>
__device__ __forceinline__ void store_row(const OutputRow& to, const AnyRow& row, Scratch<Share>& scratch) {
  const auto& [out, token, columns] = to;
  if (out.kind == InputKind::kBf16) {
    store_bf16_row<Share>(out.rows + int64_t{token} * columns, row, to.exists() ? columns : 0);
    return;
  }
  const int chunks = to.exists() ? static_cast<int>(packed_fp8::num_chunks(columns)) : 0;
  const int lane_column = static_cast<int>(threadIdx.x % 16) * kVector;
  const bool blocks = out.kind == InputKind::kPerBlock;
  float inverse = blocks ? 0.0F : 1.0F / row_scale(to, row, scratch);
  uint8_t* const packed = out.packed + packed_fp8::packed_offset(max(token, 0), lane_column, columns);
#pragma unroll
  for (int v = 0; v < AnyRow::kCount; ++v) {
    const int chunk = chunk_of<Share>(v);
    const Vector vector = row.get(v);
    if (blocks) inverse = 1.0F / block_scale(to, vector.values, chunk, chunk < chunks);
    if (chunk < chunks)
      *reinterpret_cast<uint2*>(packed + chunk * packed_fp8::kBlockBytes) = to_codes(vector.values, inverse);
  }
}

}  // namespace quaver::device_ops
