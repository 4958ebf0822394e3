// RMS norms, with the residual sum in front and the quantisation behind.
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
template <class Share, class AnyRow>
[[nodiscard]] __device__ __forceinline__ float inverse_rms(const AnyRow& row, int columns, float eps,
                                                           Scratch<Share>& scratch) {
  const float squares = reduce_row(sum_of_squares(row), scratch, Add{});
  return rsqrtf(squares / static_cast<float>(columns) + eps);
}

/// row * factor * weights. Rounded before anything is added to it (no FMA), in every kernel alike.
template <class Share, int kCount, class Weights>
[[nodiscard]] __device__ __forceinline__ Row<kCount> scaled(const RawRow<kCount>& row, float factor,
                                                            const Weights& weights, int columns) {
  Row<kCount> result{};
#pragma unroll
  for (int v = 0; v < kCount; ++v) {
    if (first_column<Share>(v) >= columns) continue;
    const Vector vector = row.get(v);
    const Vector weight = weights.get(v);
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      result.vectors[v].values[i] = __fmul_rn(vector.values[i] * factor, weight.values[i]);
  }
  return result;
}

/// Threads and CTAs of them that an SM is to have registers for. Many tokens: 4 CTAs with rows of 5,376 columns, so
/// that the loads of one hide behind the sums of others.
template <int kVectors, class Share>
inline constexpr int kNormThreads = std::is_same_v<Share, EachToken> && kVectors == 3 ? 448 : max_threads(kVectors);
template <int kVectors, class Share>
inline constexpr int kNormCtas = std::is_same_v<Share, OneToken> ? 1 : (kVectors == 1 ? 6 : 2);

template <int kVectors, class Share>
__global__ void __launch_bounds__(kNormThreads<kVectors, Share>, kNormCtas<kVectors, Share>)
    quaver_norm(const __grid_constant__ NormParameters p) {
  __shared__ Scratches<2, Share> scratches;
  ptx::launch_dependents();
  scratches.prepare();
  const NormWeights<kVectors, Share> weights(p.norm, p.columns);
  ptx::grid_dependency_wait();
  const auto token = static_cast<int>(blockIdx.x);
  const int source = p.gather == nullptr ? token : __ldcg(p.gather + token);
  if (source < 0) return;
  const auto row = load_row<kVectors, Share>(p.rows + int64_t{source} * p.columns, p.columns);
  auto& scratch = scratches.all[0];
  const float inverse = inverse_rms(row, p.columns, p.eps, scratch[0]);
  store_row(OutputRow{p.out, token, p.columns}, scaled<Share>(row, inverse, weights, p.columns), scratch[1]);
}

/// (hidden + norm) * layer_scalar, rounded to BF16 as it is stored.
template <int kCount>
[[nodiscard]] __device__ __forceinline__ RawRow<kCount> residual_sum(const RawRow<kCount>& hidden,
                                                                     const Row<kCount>& norm, float layer_scalar) {
  RawRow<kCount> sum;
#pragma unroll
  for (int v = 0; v < kCount; ++v) {
    Vector vector = hidden.get(v);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      vector.values[i] = (vector.values[i] + norm.vectors[v].values[i]) * layer_scalar;
    }
    sum.vectors[v] = to_bf16_vector(vector);
  }
  return sum;
}

template <int kVectors, class Share>
__global__ void __launch_bounds__(kNormThreads<kVectors, Share>, kNormCtas<kVectors, Share>)
    quaver_add_norm(const __grid_constant__ AddNormParameters p) {
  __shared__ Scratches<3, Share> scratches;
  ptx::launch_dependents();
  scratches.prepare();
  const NormWeights<kVectors, Share> post_norm(p.post_norm, p.columns);
  const NormWeights<kVectors, Share> next_norm(p.next_norm, p.next_norm == nullptr ? 0 : p.columns);
  ptx::grid_dependency_wait();
  const auto token = static_cast<int>(blockIdx.x);
  Bf16* const hidden = p.hidden + int64_t{token} * p.columns;
  const auto projected = load_row<kVectors, Share>(p.projected + int64_t{token} * p.columns, p.columns);
  const auto old = load_row<kVectors, Share>(hidden, p.columns);
  auto& scratch = scratches.all[0];
  const float inverse = inverse_rms(projected, p.columns, p.eps, scratch[0]);
  const auto sum = residual_sum(old, scaled<Share>(projected, inverse, post_norm, p.columns), p.layer_scalar);
#pragma unroll
  for (int v = 0; v < sum.kCount; ++v) {
    const int column = first_column<Share>(v);
    if (column < p.columns) store_vector(hidden + column, sum.vectors[v]);
  }
  if (p.next_norm == nullptr) return;
  const float next_inverse = inverse_rms(sum, p.columns, p.eps, scratch[1]);
  store_row(OutputRow{p.out, token, p.columns}, scaled<Share>(sum, next_inverse, next_norm, p.columns), scratch[2]);
}

}  // namespace quaver::device_ops
