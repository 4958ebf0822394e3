#include "ops/cuda/sampling/slot.h"

#include <algorithm>
#include <map>

namespace quaver::sampling {

SlotSetup set_up_slot(const RequestParams& params, std::span<const int32_t> stop_token_ids,
                      std::span<const int32_t> tokens, int64_t prompt_len, int64_t vocab_size) {
  SlotSetup setup;
  Slot& slot = setup.slot;
  slot.rule = draw_rule(params.sampling, vocab_size);
  slot.penalties = penalties_of(params.sampling);
  const bool repetition = slot.penalties.repetition != 1.0;
  slot.counts = repetition || slot.penalties.presence != 0.0 || slot.penalties.frequency != 0.0;
  slot.num_tokens = std::ssize(tokens);
  slot.num_generated = std::max<int64_t>(0, slot.num_tokens - prompt_len);
  slot.min_tokens = params.min_tokens;
  slot.last_token = tokens.empty() ? 0 : tokens.back();
  slot.logprobs = params.logprobs;
  slot.prompt_logprobs = params.prompt_logprobs;

  std::map<int32_t, uint32_t> marks;
  const auto inside = [&](int32_t id) { return id >= 0 && id < vocab_size; };
  int64_t index = 0;
  for (const int32_t id : tokens) {
    const bool generated = index++ >= prompt_len;
    if (!inside(id) || !(generated ? slot.counts : repetition)) continue;
    uint32_t& mark = marks[id];
    if (!generated) {
      mark |= kInPrompt;
    } else if ((mark & kCountMask) < kCountMask) {
      ++mark;
    }
  }
  for (const auto& [id, bias] : params.logit_bias) {
    if (!inside(id)) continue;
    marks[id] |= kBiased;
    const auto place = std::ranges::upper_bound(setup.biases, id, {}, &TokenLogit::id);
    setup.biases.insert(place, {.id = id, .logit = bias});
  }
  slot.num_biases = static_cast<int32_t>(setup.biases.size());
  for (const int32_t id : stop_token_ids) {
    if (inside(id) && slot.num_generated < slot.min_tokens) marks[id] |= kForbidden;
  }
  for (const auto& [id, bits] : marks) setup.marks.push_back({.id = id, .bits = bits});
  return setup;
}

}  // namespace quaver::sampling
