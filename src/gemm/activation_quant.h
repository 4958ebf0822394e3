// Activations as the FP8 product sees them: rounded to E4M3 by the checkpoint's recipe, and back to FP32.
#pragma once

#include <cstdint>
#include <vector>

#include "gemm/linear.h"

namespace quaver {

/// [num_rows, K] of `x` after quantisation, each value code * scale. A scale is amax/448 of its row or group (1 where
/// all are zero), or `weight.input_scale`. For ActivationQuant::kNone there is nothing to do: do not call.
[[nodiscard]] std::vector<float> quantize_activations(const LinearWeight& weight, const float* x, int64_t num_rows);

}  // namespace quaver
