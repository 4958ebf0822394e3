// What the sampling kernels are launched with.
#pragma once

#include <cstdint>

#include "ops/cuda/sampling/draw.h"
#include "ops/cuda/sampling/slot.h"
#include "ops/softcap.h"

namespace quaver::sampling {

inline constexpr int kMostChunks = 1024;  ///< vocabularies of up to 2^20 tokens

/// Best logits and sums of the chunks of some rows: [rows][chunks].
struct Chunks {
  float* best = nullptr;
  uint64_t* sums = nullptr;
};

struct Parameters {
  const float* logits = nullptr;  ///< [rows][stride]
  int64_t stride = 0;
  int32_t vocab = 0;
  int32_t chunks = 0;
  bool by_fours = false;  ///< rows begin at multiples of 16 bytes
  bool logprobs = false;  ///< false: target_slots, targets and the slots' wishes are not looked at
  Softcap softcap{};
  const int32_t* sample_slots = nullptr;  ///< [rows]
  const int32_t* target_slots = nullptr;
  const int32_t* targets = nullptr;
  Slot* slots = nullptr;
  uint64_t* kept = nullptr;  ///< [rows]: order_of() of the worst token that top-k, top-p and min-p leave
  Chunks drawn_chunks{};     ///< of the logits that a token is drawn from
  Chunks model_chunks{};     ///< of the logits as the model gave them; the best is NaN if any logit of the chunk is
  Drawn* drawn = nullptr;
  DrawnLogprobs* sample_logprobs = nullptr;
  DrawnLogprobs* target_logprobs = nullptr;
};

}  // namespace quaver::sampling
