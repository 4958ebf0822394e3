// Tokens from logits, for many requests: what sampling needs to know of a request's past stays here, per slot, and
// grows by one token a step.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/runner.h"
#include "ops/sampling.h"

namespace quaver {

/// Log-probability and rank of `token` and of the `num_top` most probable tokens. Throws Error(kInternal) when the
/// logits are not finite.
[[nodiscard]] TokenLogprobs token_logprobs(std::span<const float> logits, int32_t token, int num_top);

class Sampler {
 public:
  struct Drawn {
    int32_t token = 0;
    std::optional<TokenLogprobs> logprobs;
  };
  /// Memory of a thread that draws.
  struct Scratch {
    std::vector<TokenLogit> kept;
    std::vector<TokenLogit> changed;  // logits before bias and penalties
  };

  /// Gives a slot to a request; what the slot's last owner left is forgotten. Not while other threads draw.
  void start(const Step::SlotStart& start);

  /// Draws the slot's next token: bias → penalties → min_tokens → temperature → top-k → top-p → min-p → draw from
  /// (seed, position). Log-probabilities are those of `logits`, which come back unchanged. Threads may draw for
  /// different slots at once. Throws Error(kInternal), with the slot unchanged, when the logits are not finite.
  Drawn draw(int32_t slot, std::span<float> logits, Scratch& scratch);

  /// The token that the slot drew last, or the last of the tokens that it started with.
  [[nodiscard]] int32_t last_token(int32_t slot) const { return slots_[index_of(slot)].last_token; }
  [[nodiscard]] const RequestParams& params(int32_t slot) const { return slots_[index_of(slot)].params; }

 private:
  struct Slot {
    RequestParams params;
    std::vector<int32_t> stop_token_ids;
    int64_t num_tokens = 0;
    int64_t num_generated = 0;
    int32_t last_token = 0;
    /// Tokens that a penalty concerns and how often each was generated (0: in the prompt only).
    std::unordered_map<int32_t, int32_t> seen;
  };
  [[nodiscard]] size_t index_of(int32_t slot) const;
  static void add_token(Slot& slot, int32_t token, bool generated);
  static void adjust(const Slot& slot, std::span<float> logits, std::vector<TokenLogit>& changed);

  std::vector<Slot> slots_;
};

}  // namespace quaver
