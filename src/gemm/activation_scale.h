// The scale of dynamically quantised activations: one formula for CPU and GPU, whose codes are to be the same bits.
#pragma once

#include <limits>

#include "core/e4m3.h"
#include "core/host_device.h"

namespace quaver {

/// Scale of a row, or of 128 columns of it, whose largest magnitude is `amax`. A value's code is
/// e4m3_quantize(value, 1 / scale). Rows of zeros, and rows so small (5e-36) that the inverse would overflow, have 1.
[[nodiscard]] QUAVER_HD constexpr float activation_scale(float amax) {
  const float scale = amax / kE4M3Max;
  return scale >= std::numeric_limits<float>::min() ? scale : 1.0F;
}

}  // namespace quaver
