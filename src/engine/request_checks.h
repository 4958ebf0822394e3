// Which request parameters can be honoured: asked once, when a request comes in.
#pragma once

#include <cstdint>

#include "quaver/engine.h"

namespace quaver {

/// Most probable tokens that a request may ask for beside each token, as in vLLM.
inline constexpr int kMaxLogprobs = 20;

/// Throws Error(kInvalidArgument) naming the field, its value and the limit.
void check_request_params(const RequestParams& params, int64_t vocab_size);

}  // namespace quaver
