// A row in the registers of a CTA: see row_shape.h for who has what.
#pragma once

#include <cuda_bf16.h>

#include "core/bf16.h"
#include "ops/cuda/row_shape.h"
#include "ptx/prefetch.cuh"

namespace quaver::device_ops {

/// 8 neighbouring columns in FP32.
struct Vector {
  float values[kVector];
};

/// First column of the thread's vector `v`.
[[nodiscard]] __device__ __forceinline__ int first_column(int v) {
  return (static_cast<int>(threadIdx.x) + v * static_cast<int>(blockDim.x)) * kVector;
}

[[nodiscard]] __device__ __forceinline__ Vector to_floats(const uint4& raw) {
  const uint32_t words[] = {raw.x, raw.y, raw.z, raw.w};
  Vector vector;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    vector.values[2 * i] = __uint_as_float(words[i] << 16);
    vector.values[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000U);
  }
  return vector;
}

[[nodiscard]] __device__ __forceinline__ uint4 to_bf16_vector(const Vector& vector) {
  const auto pair = [&](int i) {
    const __nv_bfloat162 values = __floats2bfloat162_rn(vector.values[i], vector.values[i + 1]);
    return *reinterpret_cast<const uint32_t*>(&values);
  };
  return {pair(0), pair(2), pair(4), pair(6)};
}

/// 16 bytes that a kernel before this one wrote: past L1, whose lines may be older than griddepcontrol.wait.
[[nodiscard]] __device__ __forceinline__ uint4 load_vector(const Bf16* values) {
  return __ldcg(reinterpret_cast<const uint4*>(values));
}

__device__ __forceinline__ void store_vector(Bf16* values, const uint4& vector) {
  *reinterpret_cast<uint4*>(values) = vector;
}

/// 8 values of an array that no kernel of a step writes: norm weights.
[[nodiscard]] __device__ __forceinline__ Vector load_constants(const float* constants) {
  const float4 low = __ldg(reinterpret_cast<const float4*>(constants));
  const float4 high = __ldg(reinterpret_cast<const float4*>(constants) + 1);
  return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
}

/// The thread's columns of a row in FP32; zeros beyond the row.
template <int kVectors>
struct Row {
  static constexpr int kCount = kVectors;
  Vector vectors[kVectors];
  [[nodiscard]] __device__ const Vector& get(int v) const { return vectors[v]; }
};

/// The same as it lies in memory: half the registers.
template <int kVectors>
struct RawRow {
  static constexpr int kCount = kVectors;
  uint4 vectors[kVectors];
  [[nodiscard]] __device__ Vector get(int v) const { return to_floats(vectors[v]); }
};

template <int kVectors>
[[nodiscard]] __device__ __forceinline__ RawRow<kVectors> load_row(const Bf16* row, int columns) {
  RawRow<kVectors> raw;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int column = first_column(v);
    raw.vectors[v] = column < columns ? load_vector(row + column) : uint4{};
  }
  return raw;
}

/// Norm weights that the thread will want, while the kernel in front still runs.
template <int kVectors>
__device__ __forceinline__ void prefetch_weight_row(const float* weights, int columns) {
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (first_column(v) < columns) ptx::prefetch_l2(weights + first_column(v));
  }
}

struct Add {
  __device__ float operator()(float a, float b) const { return a + b; }
};

/// Of magnitudes; a NaN counts for nothing, as on the CPU.
struct Max {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

/// `value` of `kLanes` neighbouring lanes combined, in every one of them.
template <int kLanes, class Combine>
[[nodiscard]] __device__ __forceinline__ float reduce_lanes(float value, Combine combine) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(~0U, value, distance));
  }
  return value;
}

/// One float a warp; each reduction of a kernel has its own, so that one barrier does.
struct Scratch {
  float values[32];
};

/// `value` of all threads combined, in every thread; 0 is neutral.
template <class Combine>
[[nodiscard]] __device__ __forceinline__ float reduce_cta(float value, Scratch& scratch, Combine combine) {
  value = reduce_lanes<32>(value, combine);
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (lane == 0) scratch.values[threadIdx.x / 32] = value;
  __syncthreads();
  return reduce_lanes<32>(lane < static_cast<int>(blockDim.x / 32) ? scratch.values[lane] : 0.0F, combine);
}

template <class AnyRow>
[[nodiscard]] __device__ __forceinline__ float sum_of_squares(const AnyRow& row) {
  float sum = 0.0F;
#pragma unroll
  for (int v = 0; v < AnyRow::kCount; ++v) {
    const Vector vector = row.get(v);
#pragma unroll
    for (const float value : vector.values) sum = fmaf(value, value, sum);
  }
  return sum;
}

}  // namespace quaver::device_ops
