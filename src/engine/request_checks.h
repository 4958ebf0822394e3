// Which request parameters can be honoured: asked once, when a request comes in.
#pragma once

#include <cstdint>
#include <span>

#include "quaver/engine.h"

namespace quaver {

/// Most probable tokens that a request may ask for beside each token, as in vLLM.
inline constexpr int kMaxLogprobs = 20;

/// Throws Error(kInvalidArgument) naming the field, its value and the limit.
void check_request_params(const RequestParams& params, int64_t vocab_size);

/// The same for the images of a prompt of `num_tokens` tokens, none of them longer than `most` tokens.
void check_request_spans(std::span<const TokenSpan> spans, int64_t num_tokens, int64_t most);

}  // namespace quaver
