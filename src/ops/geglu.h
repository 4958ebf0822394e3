// The gate of Gemma's MLP.
#pragma once

#include <cstdint>

namespace quaver {

/// gate[i] = gelu_tanh(gate[i]) * up[i], gelu_tanh(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), the
/// "gelu_pytorch_tanh" of config.json.
void geglu(float* gate, const float* up, int64_t count);

}  // namespace quaver
