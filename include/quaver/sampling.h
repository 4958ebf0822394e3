// How a request draws its tokens: names and meanings as in the OpenAI and vLLM APIs.
#pragma once

#include <cstdint>

namespace quaver {

/// One request's sampling settings. Defaults: greedy.
struct SamplingParams {
  double temperature = 0.0;         ///< below kGreedyTemperature: the most probable token
  int top_k = 0;                    ///< only the k most probable tokens; 0: all
  double top_p = 1.0;               ///< smallest set of the most probable tokens with this much probability; in (0, 1]
  double min_p = 0.0;               ///< tokens at least this fraction as probable as the best one; in [0, 1]
  double repetition_penalty = 1.0;  ///< logits of tokens seen so far: / penalty if positive, else * penalty
  double presence_penalty = 0.0;    ///< subtracted from logits of generated tokens
  double frequency_penalty = 0.0;   ///< subtracted for each time a token was generated, 8,191 at most
  uint64_t seed = 0;
};

/// At temperature 1e-3 a logit 0.03 behind the best one has weight e^-30: sampling could only show rounding noise.
inline constexpr double kGreedyTemperature = 1e-3;

/// Throws Error(kInvalidArgument) naming the field, its value and the range.
void check_sampling_params(const SamplingParams& params);

}  // namespace quaver
