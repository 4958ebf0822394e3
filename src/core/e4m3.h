// FP8 E4M3 ("e4m3fn": no infinities, NaN = S.1111.111) codec, bit-exact with the CUDA conversion
// cvt.rn.satfinite.e4m3x2.f32 (PTX ISA, "cvt"): round to nearest even, overflow and infinities saturate to ±448,
// every NaN becomes 0x7F.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "core/host_device.h"

namespace quaver {

inline constexpr float kE4M3Max = 448.0F;
inline constexpr uint8_t kE4M3Nan = 0x7F;

[[nodiscard]] QUAVER_HD constexpr bool e4m3_is_nan(uint8_t code) {
  return (code & 0x7FU) == 0x7FU;
}

/// Code to value; 0x7F and 0xFF are NaN.
[[nodiscard]] QUAVER_HD constexpr float e4m3_decode(uint8_t code) {
  const auto sign = static_cast<uint32_t>(code & 0x80U) << 24;
  const uint32_t exponent = (code >> 3) & 0xFU;
  const uint32_t mantissa = code & 0x7U;
  if (e4m3_is_nan(code)) return std::bit_cast<float>(sign | 0x7FC00000U);
  if (exponent == 0) {  // subnormal: mantissa * 2^-9
    const float magnitude = static_cast<float>(mantissa) * 0x1p-9F;
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 120U) << 23) | (mantissa << 20));
}

/// Value to code. Without branches (cases are chosen by sign masks), so that loops over rows vectorise.
[[nodiscard]] QUAVER_HD constexpr uint8_t e4m3_encode(float value) {
  constexpr int32_t kSmallestNormal = 0x3C800000;  // 2^-6
  constexpr int32_t kInfinity = 0x7F800000;
  constexpr float kRounder = 0x1p14F;  // its last mantissa bit is 2^-9, the step of the codes below 2^-6
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto magnitude = static_cast<int32_t>(bits & 0x7FFFFFFFU);
  const int32_t below = (magnitude - kSmallestNormal) >> 31;
  const int32_t nan = (kInfinity - magnitude) >> 31;
  // From 2^-6 on: round the mantissa to 3 bits and move the exponent's bias from 127 to 7.
  const auto rounded_up = static_cast<uint32_t>(magnitude) + 0x7FFFFU + ((bits >> 20) & 1U);
  const auto normal = static_cast<int32_t>(rounded_up >> 20) - (120 << 3);
  // Below: count the steps of 2^-9, rounded by an addition.
  const float sum = std::bit_cast<float>(magnitude & below) + kRounder;
  const int32_t steps = std::bit_cast<int32_t>(sum) - std::bit_cast<int32_t>(kRounder);
  const int32_t rounded = (normal & ~below) | steps;
  const int32_t code = rounded < 0x7E ? rounded : 0x7E;  // 464 and more would round beyond 448: saturate
  const auto sign = static_cast<int32_t>(bits >> 24) & 0x80;
  return static_cast<uint8_t>(((code | sign) & ~nan) | (kE4M3Nan & nan));
}

/// What the cache stores: e4m3(fp32(x) * fp32(1/scale)).
[[nodiscard]] QUAVER_HD constexpr uint8_t e4m3_quantize(float value, float inverse_scale) {
  return e4m3_encode(value * inverse_scale);
}

}  // namespace quaver
