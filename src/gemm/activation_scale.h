// The scale of dynamically quantised activations: one formula for CPU and GPU, whose codes are to be the same bits.
#pragma once

#include "core/e4m3.h"
#include "core/host_device.h"

namespace quaver {

/// Scale of a row, or of 128 columns of it, whose largest magnitude is `amax`; 1 where all are zero. A value's code is
/// e4m3_quantize(value, 1 / scale).
[[nodiscard]] QUAVER_HD constexpr float activation_scale(float amax) {
  return amax > 0.0F ? amax / kE4M3Max : 1.0F;
}

}  // namespace quaver
