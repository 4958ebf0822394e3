// Gemma 4's bound on logits (`final_logit_softcapping`), with the same bits on the CPU and the GPU.
#pragma once

#include <cstdint>

#include "core/exp2.h"
#include "core/host_device.h"

namespace quaver {

struct Softcap {
  float cap = 0.0F;  ///< 0: none
  float inverse = 0.0F;

  QUAVER_HD float operator()(float x) const { return cap > 0.0F ? cap * tanh_by_exp2(x * inverse) : x; }
};

[[nodiscard]] inline Softcap make_softcap(double cap) {
  return {.cap = static_cast<float>(cap), .inverse = cap > 0 ? static_cast<float>(1.0 / cap) : 0.0F};
}

/// x[i] = cap * tanh(x[i] / cap). Throws Error(kInvalidArgument) unless cap > 0.
void softcap(float* x, int64_t count, double cap);

}  // namespace quaver
