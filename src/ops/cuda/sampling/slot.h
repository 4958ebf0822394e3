// State of a slot in device memory, and how it follows from a request: pure functions of the host.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/host_device.h"
#include "ops/sampling.h"
#include "quaver/engine.h"

namespace quaver::sampling {

/// Marks of a slot, uint16_t [vocab rounded up to kChunkTokens]: 0 for a token that is drawn as it is.
inline constexpr uint32_t kBiased = 0x8000;
inline constexpr uint32_t kForbidden = 0x4000;  ///< by min_tokens
inline constexpr uint32_t kInPrompt = 0x2000;   ///< where there is a repetition penalty
inline constexpr uint32_t kCountMask = 0x1FFF;  ///< how often the token was generated, where there is any penalty

static_assert(kCountMask == kMostCounted);

struct Slot {
  DrawRule rule{};
  Penalties penalties{};
  bool counts = false;  ///< any penalty
  int64_t num_tokens = 0;
  int64_t num_generated = 0;
  int64_t min_tokens = 0;
  int32_t last_token = 0;
  int32_t logprobs = -1;         ///< of generated tokens; -1: none
  int32_t prompt_logprobs = -1;  ///< likewise of the prompt's
  int32_t num_biases = 0;
  uint16_t* marks = nullptr;           ///< null where no token has any
  const TokenLogit* biases = nullptr;  ///< by id; those of one id in the order in which they are added
};

/// Whether marks matter for the slot's next token.
[[nodiscard]] QUAVER_HD inline bool uses_marks(const Slot& slot) {
  return slot.counts || slot.num_biases > 0 || slot.num_generated < slot.min_tokens;
}

/// Elements of a slot's marks: whole chunks, so that kernels read them like logits.
[[nodiscard]] inline int64_t mark_count(int64_t vocab_size) {
  return (vocab_size + kChunkTokens - 1) / kChunkTokens * kChunkTokens;
}

struct Mark {
  int32_t id = 0;
  uint32_t bits = 0;
};

/// A new slot, all but its device pointers.
struct SlotSetup {
  Slot slot{};
  std::vector<Mark> marks;         ///< each id once
  std::vector<TokenLogit> biases;  ///< for Slot::biases
};

/// `tokens`: the prompt, then what was generated before a preemption. Ids outside the vocabulary are left out.
[[nodiscard]] SlotSetup set_up_slot(const RequestParams& params, std::span<const int32_t> stop_token_ids,
                                    std::span<const int32_t> tokens, int64_t prompt_len, int64_t vocab_size);

}  // namespace quaver::sampling
