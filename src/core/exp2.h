// Exponentials with the same bits on the host and on a CUDA device: only additions, products and FMAs, in one order.
// Device code must be compiled with -fmad=false. core/simd.h has the same for eight floats at a time.
#pragma once

#include <cmath>
#include <numbers>

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
  return add_product(p, std::numbers::ln2_v<float>);
}
inline constexpr float kExp2SeriesHighest = 1.52527338e-5F;

QUAVER_HD inline float exp2_series(float f) {
  return exp2_series(kExp2SeriesHighest, [f](float p, float c) { return std::fma(p, f, c); });
}

}  // namespace quaver
