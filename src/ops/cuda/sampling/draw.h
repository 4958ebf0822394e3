// What is asked of a row of logits and what comes back: plain structs that lie in device or pinned memory.
#pragma once

#include <cstdint>

#include "ops/sampling.h"

namespace quaver {

inline constexpr int kMaxTopLogprobs = 20;

struct Draw {
  int32_t logit_row = 0;
  int32_t slot = -1;    ///< -1: padding, nothing is done or written
  int32_t target = -1;  ///< >= 0: no draw, only the log-probability of this prompt token
};

enum class DrawStatus : int32_t {
  kOk = 0,
  kNoNumber = 1,   ///< no logit is above -inf
  kNotFinite = 2,  ///< log-probabilities are wanted, and a logit is NaN or the largest is infinite
};

struct Drawn {
  int32_t token = 0;  ///< the target where there is one; means nothing unless the status is kOk
  DrawStatus status = DrawStatus::kOk;
};

/// Of the logits before bias, penalties and temperature.
struct DrawnLogprobs {
  float logit = 0;   ///< of the token
  int32_t rank = 0;  ///< 1: the most probable
  WeightSum sum{};   ///< of all tokens at temperature 1
  int32_t num_top = 0;
  TokenLogit top[kMaxTopLogprobs] = {};  ///< best first
};

}  // namespace quaver
