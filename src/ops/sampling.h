// From logits to a token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/token_weights.h"
#include "quaver/sampling.h"

namespace quaver {

/// The token with the largest logit, the lowest id of equals. NaN never wins.
/// Throws Error(kInternal) when no logit is a number.
[[nodiscard]] int32_t argmax(std::span<const float> logits);

struct TokenLogit {
  int32_t id = 0;
  float logit = 0;
};

/// The `count` largest logits, best first, equal ones by id; NaN is left out. `best` is overwritten.
void best_logits(std::span<const float> logits, int64_t count, std::vector<TokenLogit>& best);

/// Logits → temperature → top-k → top-p → min-p → one draw. The draw depends on nothing but the seed and `position`
/// (number of tokens before the new one), so a request gives the same text whatever it is batched with. `scratch` is
/// memory to be reused. Throws Error(kInternal) when no logit is above -inf.
[[nodiscard]] int32_t sample_token(const SamplingParams& params, std::span<const float> logits, int64_t position,
                                   std::vector<TokenLogit>& scratch);

/// What token_weights.h needs to know of a request. `vocab_size`: a top_k that large leaves all tokens.
[[nodiscard]] Penalties penalties_of(const SamplingParams& params);
[[nodiscard]] DrawRule draw_rule(const SamplingParams& params, int64_t vocab_size);

/// Natural logarithm of the row's weights at temperature 1 (scale kLog2e); NaN where there is no sum.
[[nodiscard]] double log_of(const WeightSum& row);

/// log(sum(exp(logits))); NaN if any logit is, or if the largest is infinite or beyond what token_weights.h can add.
[[nodiscard]] double log_sum_exp(std::span<const float> logits);

/// log softmax(logits)[token].
[[nodiscard]] double log_probability(std::span<const float> logits, int32_t token);

}  // namespace quaver
