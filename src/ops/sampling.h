// From logits to a token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "quaver/sampling.h"

namespace quaver {

/// The token with the largest logit, the lowest id of equals. NaN never wins.
/// Throws Error(kInternal) when no logit is a number.
[[nodiscard]] int32_t argmax(std::span<const float> logits);

/// Applies repetition, presence and frequency penalties in place. `prompt` and `generated` are the tokens so far; ids
/// outside the logits are ignored.
void apply_penalties(const SamplingParams& params, std::span<const int32_t> prompt, std::span<const int32_t> generated,
                     std::span<float> logits);

/// Penalised logits → temperature → top-k → top-p → min-p → one draw. The draw depends on nothing but the seed and
/// `position` (number of tokens before the new one), so a request gives the same text whatever it is batched with.
[[nodiscard]] int32_t sample_token(const SamplingParams& params, std::span<const float> logits, int64_t position);

/// Uniform in [0, 1), a pure function of its arguments.
[[nodiscard]] double uniform_draw(uint64_t seed, int64_t position);

/// log softmax(logits)[token], summed in double; NaN if any logit is.
[[nodiscard]] double log_probability(std::span<const float> logits, int32_t token);

}  // namespace quaver
