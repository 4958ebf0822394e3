// Exponentials with the same bits on the host and on a CUDA device: only additions, products and FMAs, in one order.
// Device code must be compiled with -fmad=false. core/simd.h has the same for eight floats at a time.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "core/host_device.h"

namespace quaver {

/// 1.5 * 2^23: added to a float below 2^22 in size it leaves the nearest integer in the low bits.
inline constexpr float kRoundToInteger = 12582912.0F;

/// (2^f - 1) / f for f in [-0.5, 0.5]: Taylor series, ln(2)^k / k!. `add_product(p, c)` is fma(p, f, c).
template <class Value, class AddProduct>
QUAVER_HD Value exp2_series(Value highest, const AddProduct& add_product) {
  Value p = add_product(highest, 1.54035304e-4F);
  p = add_product(p, 1.33335581e-3F);
  p = add_product(p, 9.61812911e-3F);
  p = add_product(p, 5.55041087e-2F);
  p = add_product(p, 2.40226507e-1F);
  return add_product(p, 0.693147182F);
}
inline constexpr float kExp2SeriesHighest = 1.52527338e-5F;

QUAVER_HD inline float exp2_series(float f) {
  return exp2_series(kExp2SeriesHighest, [f](float p, float c) { return std::fma(p, f, c); });
}

/// tanh(x) = e / (e + 2) with e = exp(2x) - 1, which loses no digits near 0; relative error below 4e-7.
QUAVER_HD inline float tanh_by_exp2(float x) {
  x = x > 10.0F ? 10.0F : x;  // tanh(10) rounds to 1; a NaN fails both comparisons and stays
  x = x < -10.0F ? -10.0F : x;
  const float log2 = x * 2.88539004F;  // 2 log2(e)
  const float shifted = log2 + kRoundToInteger;
  const float f = log2 - (shifted - kRoundToInteger);
  const float power = std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) + 127U) << 23U);
  const float e = std::fma(exp2_series(f) * f, power, power - 1.0F);
  return e / (e + 2.0F);
}

}  // namespace quaver
