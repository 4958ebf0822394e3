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

/// Value to code.
[[nodiscard]] QUAVER_HD constexpr uint8_t e4m3_encode(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>((bits >> 24) & 0x80U);
  const uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return kE4M3Nan;
  if (magnitude >= 0x43E80000U) return static_cast<uint8_t>(sign | 0x7EU);  // >= 464 rounds beyond 448: saturate
  if (magnitude < 0x3C800000U) {                                            // < 2^-6: subnormal, steps of 2^-9
    const uint32_t exponent = magnitude >> 23;
    if (exponent < 116U) return sign;  // < 2^-11 < half a step
    const uint32_t mantissa = (magnitude & 0x7FFFFFU) | 0x800000U;
    const uint32_t shift =
        141U - exponent;  // value = mantissa * 2^(exponent-150); in steps of 2^-9: >> (141 - exponent)
    const uint32_t floor = mantissa >> shift;
    const uint32_t rest = mantissa & ((1U << shift) - 1U);
    const uint32_t half = 1U << (shift - 1U);
    const uint32_t round_up = (rest > half || (rest == half && (floor & 1U) != 0)) ? 1U : 0U;
    return static_cast<uint8_t>(sign | (floor + round_up));
  }
  const uint32_t rounded = magnitude + 0x7FFFFU + ((magnitude >> 20) & 1U);
  return static_cast<uint8_t>(sign | ((rounded >> 20) - (120U << 3)));
}

/// What the cache stores: e4m3(fp32(x) * fp32(1/scale)).
[[nodiscard]] QUAVER_HD constexpr uint8_t e4m3_quantize(float value, float inverse_scale) {
  return e4m3_encode(value * inverse_scale);
}

}  // namespace quaver
