#include <algorithm>
#include <cmath>

#include "core/e4m3.h"
#include "gemm/activation_quant.h"
#include "gemm/activation_scale.h"

namespace quaver {
namespace {

constexpr int64_t kParallelValues = 1 << 14;  // below, starting threads costs more than the work

float dynamic_scale(const float* x, int64_t count) {
  float amax = 0.0F;
  for (int64_t i = 0; i < count; ++i) amax = std::max(amax, std::abs(x[i]));
  return activation_scale(amax);
}

void round_to_e4m3(const float* x, int64_t count, float scale, float* rounded) {
  const float inverse = 1.0F / scale;
  for (int64_t i = 0; i < count; ++i) rounded[i] = e4m3_decode(e4m3_quantize(x[i], inverse)) * scale;
}

}  // namespace

std::vector<float> quantize_activations(const LinearWeight& weight, const float* x, int64_t num_rows) {
  const int64_t k = weight.in_features();
  const bool is_static = weight.activation == ActivationQuant::kPerTensor;
  const int64_t group = weight.activation == ActivationQuant::kPerGroup128 ? 128 : k;
  std::vector<float> rounded(static_cast<size_t>(num_rows * k));
#pragma omp parallel for schedule(static) if (num_rows * k >= kParallelValues)
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int64_t begin = 0; begin < k; begin += group) {
      const float* const source = x + row * k + begin;
      const int64_t count = std::min(group, k - begin);
      const float scale = is_static ? weight.input_scale : dynamic_scale(source, count);
      round_to_e4m3(source, count, scale, rounded.data() + row * k + begin);
    }
  }
  return rounded;
}

}  // namespace quaver
