// RMS norms, with the residual sum in front and the quantisation behind: a CTA a token.
#pragma once

#include "ops/cuda/row_output.cuh"
#include "ptx/launch.cuh"

namespace quaver::device_ops {

struct NormParameters {
  const Bf16* rows = nullptr;
  const int32_t* gather = nullptr;  ///< row of each output; null: its own number
  const float* norm = nullptr;
  float eps = 0.0F;
  int columns = 0;
  GemmInput out{};
};

struct AddNormParameters {
  const Bf16* projected = nullptr;
  const float* post_norm = nullptr;
  Bf16* hidden = nullptr;
  float layer_scalar = 1.0F;
  const float* next_norm = nullptr;  ///< null: no output
  float eps = 0.0F;
  int columns = 0;
  GemmInput out{};
};

/// 1 / rms of the row.
template <class AnyRow>
[[nodiscard]] __device__ __forceinline__ float inverse_rms(const AnyRow& row, int columns, float eps,
                                                           Scratch& scratch) {
  const float squares = reduce_cta(sum_of_squares(row), scratch, Add{});
  return rsqrtf(squares / static_cast<float>(columns) + eps);
}

/// row * factor * weights. Weights come from L1 vector by vector: a row of them in registers would cost an SM a CTA.
template <int kVectors>
[[nodiscard]] __device__ __forceinline__ Row<kVectors> scaled(const RawRow<kVectors>& row, float factor,
                                                              const float* weights, int columns) {
  Row<kVectors> result{};
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int column = first_column(v);
    if (column >= columns) continue;
    const Vector vector = row.get(v);
    const Vector weight = load_constants(weights + column);
#pragma unroll
    for (int i = 0; i < kVector; ++i) result.vectors[v].values[i] = vector.values[i] * factor * weight.values[i];
  }
  return result;
}

template <int kVectors>
__global__ void __launch_bounds__(max_threads(kVectors), min_ctas(kVectors))
    quaver_norm(const __grid_constant__ NormParameters p) {
  __shared__ Scratch scratch[2];
  ptx::launch_dependents();
  prefetch_weight_row<kVectors>(p.norm, p.columns);
  ptx::grid_dependency_wait();
  const int64_t token = blockIdx.x;
  const int64_t source = p.gather == nullptr ? token : __ldcg(p.gather + token);
  if (source < 0) return;
  const auto row = load_row<kVectors>(p.rows + source * p.columns, p.columns);
  const float inverse = inverse_rms(row, p.columns, p.eps, scratch[0]);
  store_row(p.out, scaled(row, inverse, p.norm, p.columns), token, p.columns, scratch[1]);
}

/// (hidden + norm) * layer_scalar, rounded to BF16 as it is stored.
template <int kVectors>
[[nodiscard]] __device__ __forceinline__ RawRow<kVectors> residual_sum(const RawRow<kVectors>& hidden,
                                                                       const Row<kVectors>& norm, float layer_scalar) {
  RawRow<kVectors> sum;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    Vector vector = hidden.get(v);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      vector.values[i] = (vector.values[i] + norm.vectors[v].values[i]) * layer_scalar;
    }
    sum.vectors[v] = to_bf16_vector(vector);
  }
  return sum;
}

template <int kVectors>
__global__ void __launch_bounds__(max_threads(kVectors), min_ctas(kVectors))
    quaver_add_norm(const __grid_constant__ AddNormParameters p) {
  __shared__ Scratch scratch[3];
  ptx::launch_dependents();
  prefetch_weight_row<kVectors>(p.post_norm, p.columns);
  if (p.next_norm != nullptr) prefetch_weight_row<kVectors>(p.next_norm, p.columns);
  ptx::grid_dependency_wait();
  const int64_t token = blockIdx.x;
  Bf16* const hidden = p.hidden + token * p.columns;
  const auto projected = load_row<kVectors>(p.projected + token * p.columns, p.columns);
  const auto old = load_row<kVectors>(hidden, p.columns);
  const float inverse = inverse_rms(projected, p.columns, p.eps, scratch[0]);
  const auto sum = residual_sum(old, scaled(projected, inverse, p.post_norm, p.columns), p.layer_scalar);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (first_column(v) < p.columns) store_vector(hidden + first_column(v), sum.vectors[v]);
  }
  if (p.next_norm == nullptr) return;
  const float next_inverse = inverse_rms(sum, p.columns, p.eps, scratch[1]);
  store_row(p.out, scaled(sum, next_inverse, p.next_norm, p.columns), token, p.columns, scratch[2]);
}

}  // namespace quaver::device_ops
