#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <ranges>

#include "core/check.h"

namespace quaver {

TokenLogprobs token_logprobs(std::span<const float> logits, int32_t token, int num_top) {
  check(token >= 0 && std::cmp_less(token, logits.size()), "token id ", token, ": expected 0 to ", logits.size() - 1);
  const double normaliser = log_sum_exp(logits);
  check_as(ErrorKind::kInternal, std::isfinite(normaliser), "logits: expected finite numbers for log-probabilities");
  const auto logprob = [&](float logit) { return static_cast<float>(logit - normaliser); };
  const float own = logits[static_cast<size_t>(token)];
  TokenLogprobs result{.token = token, .logprob = logprob(own), .rank = 1, .top = {}};
  for (const float logit : logits) result.rank += logit > own ? 1 : 0;
  std::vector<TokenLogit> best;
  best_logits(logits, num_top, best);
  for (const TokenLogit& each : best) result.top.emplace_back(each.id, logprob(each.logit));
  return result;
}

size_t Sampler::index_of(int32_t slot) const {
  check(slot >= 0 && std::cmp_less(slot, slots_.size()), "slot ", slot, ": expected one that a request has");
  return static_cast<size_t>(slot);
}

void Sampler::add_token(Slot& slot, int32_t token, bool generated) {
  ++slot.num_tokens;
  slot.last_token = token;
  if (generated) ++slot.num_generated;
  const SamplingParams& sampling = slot.params.sampling;
  const bool counts = generated && (sampling.presence_penalty != 0.0 || sampling.frequency_penalty != 0.0);
  if (!counts && sampling.repetition_penalty == 1.0) return;
  int32_t& count = slot.seen[token];
  if (generated) count = std::min(count + 1, kMostCounted);
}

void Sampler::start(const Step::SlotStart& start) {
  check(start.slot >= 0, "slot ", start.slot, ": expected >= 0");
  if (std::cmp_greater_equal(start.slot, slots_.size())) slots_.resize(static_cast<size_t>(start.slot) + 1);
  Slot& slot = slots_[static_cast<size_t>(start.slot)];
  slot = {.params = start.params, .stop_token_ids = start.stop_token_ids, .seen = {}};
  int64_t index = 0;
  for (const int32_t token : start.tokens) add_token(slot, token, index++ >= start.prompt_len);
}

void Sampler::adjust(const Slot& slot, std::span<float> logits, std::vector<TokenLogit>& changed) {
  const auto change = [&](int32_t id, const auto& new_logit) {
    if (id < 0 || std::cmp_greater_equal(id, logits.size())) return;  // a configuration's eos id may be outside
    float& logit = logits[static_cast<size_t>(id)];
    changed.push_back({.id = id, .logit = logit});
    logit = new_logit(logit);
  };
  for (const auto& [id, bias] : slot.params.logit_bias) {
    change(id, [bias = bias](float logit) { return logit + bias; });
  }
  const Penalties penalties = penalties_of(slot.params.sampling);
  for (const auto& [id, seen] : slot.seen) {
    change(id, [&, count = seen](float logit) { return penalised(logit, penalties, count); });
  }
  if (slot.num_generated >= slot.params.min_tokens) return;
  for (const int32_t id : slot.stop_token_ids) {
    change(id, [](float) { return -std::numeric_limits<float>::infinity(); });
  }
}

Sampler::Drawn Sampler::draw(int32_t slot_index, std::span<float> logits, Scratch& scratch) {
  Slot& slot = slots_[index_of(slot_index)];
  scratch.changed.clear();
  adjust(slot, logits, scratch.changed);
  const int32_t token = sample_token(slot.params.sampling, logits, slot.num_tokens, scratch.kept);
  for (const TokenLogit& old : std::views::reverse(scratch.changed)) logits[static_cast<size_t>(old.id)] = old.logit;
  Drawn drawn{.token = token, .logprobs = std::nullopt};
  if (slot.params.logprobs >= 0) drawn.logprobs = token_logprobs(logits, token, slot.params.logprobs);
  add_token(slot, token, true);
  return drawn;
}

}  // namespace quaver
