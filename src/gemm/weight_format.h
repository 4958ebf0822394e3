// How the GPU stores a weight, and which activations each format takes. Plain C++: plans are made without a GPU.
#pragma once

#include <cstdint>
#include <string_view>

#include "gemm/gemm_input.h"

namespace quaver {

enum class WeightFormat : uint8_t {
  kOuter,  ///< packed E4M3, one scale a row (per-tensor scales are these, all alike)
  kBlock,  ///< packed E4M3, one scale per 128x128 block
  kBf16,   ///< dense BF16 rows
};

/// "fp8, a scale per row", for messages.
[[nodiscard]] constexpr std::string_view weight_format_name(WeightFormat format) noexcept {
  switch (format) {
    case WeightFormat::kOuter: return "fp8 with a scale per row";
    case WeightFormat::kBlock: return "fp8 with a scale per 128x128 block";
    default: return "bf16";
  }
}

[[nodiscard]] constexpr bool takes_input(WeightFormat format, InputKind input) noexcept {
  switch (format) {
    case WeightFormat::kOuter: return input == InputKind::kPerToken || input == InputKind::kStatic;
    case WeightFormat::kBlock: return input == InputKind::kPerBlock;
    default: return input == InputKind::kBf16;
  }
}

}  // namespace quaver
