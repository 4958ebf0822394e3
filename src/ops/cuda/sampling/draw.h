// What comes back for a row of logits: plain structs that lie in device or pinned memory.
#pragma once

#include <cstdint>

#include "ops/sampling.h"

namespace quaver {

inline constexpr int kMostTopLogprobs = 20;

enum class DrawStatus : uint8_t {
  kOk = 0,
  kNoNumber = 1,   ///< no logit is above -inf
  kNotFinite = 2,  ///< log-probabilities are wanted, and a logit is NaN or the largest is infinite
};

struct Drawn {
  int32_t token = -1;
  DrawStatus status = DrawStatus::kOk;
  bool has_logprobs = false;  ///< its DrawnLogprobs are written too
};

/// Of a token, from the logits before bias, penalties and temperature.
struct DrawnLogprobs {
  DrawStatus status = DrawStatus::kOk;  ///< of a target
  int32_t token = -1;
  float logit = 0;   ///< the token's
  int32_t rank = 0;  ///< 1: the most probable
  WeightSum sum{};   ///< of all tokens at temperature 1
  int32_t num_top = 0;
  TokenLogit top[kMostTopLogprobs] = {};  ///< best first
};

}  // namespace quaver
