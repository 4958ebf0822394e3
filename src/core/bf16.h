// BF16 storage type with round-to-nearest-even conversion, as __float2bfloat16_rn.
#pragma once

#include <bit>
#include <cstdint>

#include "core/host_device.h"

namespace quaver {

struct Bf16 {
  uint16_t bits = 0;
  friend bool operator==(const Bf16&, const Bf16&) = default;
};

[[nodiscard]] QUAVER_HD constexpr float to_float(Bf16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

/// Round to nearest, ties to even; NaN stays NaN (quiet), overflow becomes infinity.
[[nodiscard]] QUAVER_HD constexpr Bf16 to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return Bf16{static_cast<uint16_t>((bits >> 16) | 0x40U)};
  return Bf16{static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16)};
}

}  // namespace quaver
