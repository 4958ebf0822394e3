// Gemma 4's bound on logits (`final_logit_softcapping`).
#pragma once

#include <cstdint>

namespace quaver {

/// x[i] = cap * tanh(x[i] / cap). Throws Error(kInvalidArgument) unless cap > 0.
void softcap(float* x, int64_t count, double cap);

}  // namespace quaver
