// From logits to a token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace quaver {

/// One request's sampling settings; names and meanings as in the OpenAI and vLLM APIs. Defaults: greedy.
struct SamplingParams {
  double temperature = 0.0;         ///< below kGreedyTemperature: the most probable token
  int top_k = 0;                    ///< only the k most probable tokens; 0: all
  double top_p = 1.0;               ///< smallest set of the most probable tokens with this much probability; in (0, 1]
  double min_p = 0.0;               ///< tokens at least this fraction as probable as the best one; in [0, 1]
  double repetition_penalty = 1.0;  ///< logits of tokens seen so far: / penalty if positive, else * penalty
  double presence_penalty = 0.0;    ///< subtracted from logits of generated tokens
  double frequency_penalty = 0.0;   ///< subtracted once for each time a token was generated
  uint64_t seed = 0;
};

/// At temperature 1e-3 a logit 0.03 behind the best one has weight e^-30: sampling could only show rounding noise.
inline constexpr double kGreedyTemperature = 1e-3;

/// Throws Error(kInvalidArgument) naming the field, its value and the range.
void check_sampling_params(const SamplingParams& params);

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
