#include <cmath>

#include "core/check.h"
#include "core/simd.h"
#include "ops/rms_norm.h"

namespace quaver {
namespace {

using simd::F32x8;

constexpr int64_t kParallelValues = 1 << 15;  // below, starting threads costs more than the work

float inverse_rms(const float* x, int64_t dim, double eps) {
  F32x8 lanes{};
  int64_t i = 0;
  for (; i + 8 <= dim; i += 8) {
    const auto values = simd::load<F32x8>(x + i);
    lanes = simd::fma(values, values, lanes);
  }
  double squares = simd::sum_lanes(lanes);
  for (; i < dim; ++i) squares += static_cast<double>(x[i]) * x[i];
  return static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(dim) + eps));
}

/// put(index, normalised value) for every value of every row.
template <class Put>
void for_normalised(const float* x, int64_t num_rows, int64_t dim, std::span<const float> weight, double eps,
                    const Put& put) {
  check(weight.empty() || static_cast<int64_t>(weight.size()) == dim, "norm weight size ", weight.size(), ": expected ",
        dim);
#pragma omp parallel for schedule(static) if (num_rows > 1 && num_rows * dim >= kParallelValues)
  for (int64_t row = 0; row < num_rows; ++row) {
    const float scale = inverse_rms(x + row * dim, dim, eps);
    for (int64_t i = 0; i < dim; ++i) {
      const float value = x[row * dim + i] * scale;
      put(row * dim + i, weight.empty() ? value : value * weight[static_cast<size_t>(i)]);
    }
  }
}

}  // namespace

void rms_norm(const float* x, int64_t num_rows, int64_t dim, std::span<const float> weight, double eps, float* out) {
  for_normalised(x, num_rows, dim, weight, eps, [out](int64_t i, float value) { out[i] = value; });
}

void rms_norm_add(const float* x, int64_t num_rows, int64_t dim, std::span<const float> weight, double eps,
                  float* residual) {
  for_normalised(x, num_rows, dim, weight, eps, [residual](int64_t i, float value) { residual[i] += value; });
}

}  // namespace quaver
