// The gate of Gemma's MLP on the GPU; the CPU's is ops/geglu.h in the same form.
#pragma once

#include <cuda_runtime.h>

#include "ptx/convert.cuh"

namespace quaver {

/// x/2 (1 + tanh u) = x / (1 + e^-2u), u = sqrt(2/pi) (x + 0.044715 x^3): e^-2u, at most 2^most_exponent, which is
/// finite; x / 2^most_exponent is as good as 0.
[[nodiscard]] __device__ __forceinline__ float gelu_exponential(float x, float most_exponent) {
  constexpr float kScale = -1.44269504F * 1.59576912F;  // -2 sqrt(2/pi) / ln 2: e^-2u = 2^exponent
  const float exponent = x * fmaf(x * x, 0.044715F * kScale, kScale);
  return ptx::exp2_approx(fminf(exponent, most_exponent));
}

[[nodiscard]] __device__ __forceinline__ float gelu_tanh(float x) {
  return x * ptx::reciprocal_approx(1.0F + gelu_exponential(x, 126.0F));
}

/// Of two values with one reciprocal for both: 1/a = b/(ab). The SFU, with 16 results a clock, is what limits the gate.
[[nodiscard]] __device__ __forceinline__ float2 gelu_tanh(float2 x) {
  const float a = 1.0F + gelu_exponential(x.x, 62.0F);
  const float b = 1.0F + gelu_exponential(x.y, 62.0F);
  const float inverse = ptx::reciprocal_approx(a * b);
  return {x.x * (b * inverse), x.y * (a * inverse)};
}

}  // namespace quaver
