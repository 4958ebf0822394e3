// Gemma 4's bound on logits (`final_logit_softcapping`), with the same bits on the CPU and the GPU.
#pragma once

#include <bit>
#include <cstdint>
#include <numbers>

#include "core/exp2.h"
#include "core/host_device.h"

namespace quaver {

struct Softcap {
  float cap = 0.0F;  ///< 0: none
  float inverse = 0.0F;

  /// cap * tanh(x / cap), relative error below 6e-7. tanh(y) = e / (e + 2) with e = exp(2y) - 1, which loses no digits
  /// near 0; a division of the GPU branches, so the reciprocal is found by two cubic steps from a first guess.
  QUAVER_HD float operator()(float x) const {
    if (!(cap > 0.0F)) return x;
    float y = x * inverse;
    y = y > 10.0F ? 10.0F : y;  // tanh(10) rounds to 1; a NaN fails both comparisons and stays
    y = y < -10.0F ? -10.0F : y;
    const float log2 = y * (2 * std::numbers::log2e_v<float>);
    const float shifted = log2 + kRoundToInteger;
    const float f = log2 - (shifted - kRoundToInteger);
    const auto power = std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) + 127U) << 23U);
    const float e = std::fma(exp2_series(f) * f, power, power - 1.0F);
    const float divisor = e + 2.0F;                                                          // 1 … 2^29
    auto reciprocal = std::bit_cast<float>(0x7EF311C3U - std::bit_cast<uint32_t>(divisor));  // within 13 %
    for (int step = 0; step < 2; ++step) {
      const float error = std::fma(-divisor, reciprocal, 1.0F);
      reciprocal = std::fma(reciprocal, std::fma(error, error, error), reciprocal);
    }
    return cap * (e * reciprocal);
  }
};

[[nodiscard]] inline Softcap make_softcap(double cap) {
  return {.cap = static_cast<float>(cap), .inverse = cap > 0 ? static_cast<float>(1.0 / cap) : 0.0F};
}

/// x[i] = cap * tanh(x[i] / cap). Throws Error(kInvalidArgument) unless cap > 0.
void softcap(float* x, int64_t count, double cap);

}  // namespace quaver
