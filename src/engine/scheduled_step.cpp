#include "engine/scheduled_step.h"

#include <algorithm>
#include <span>

namespace quaver {
void ScheduledStep::begin() {
  step_.row_slots.clear();
  step_.page_copies.clear();
  step_.starts.clear();
  step_.feedback.clear();
  step_.samples.clear();
  step_.prompt_logprobs.clear();
  clear();
}

void ScheduledStep::clear() {
  rows_.clear();
  ended_.clear();
}

void ScheduledStep::start_slot(const LiveRequest& request) {
  step_.starts.push_back({.slot = request.slot,
                          .params = request.params,
                          .stop_token_ids = request.stop_ids,
                          .tokens = request.tokens,
                          .prompt_len = request.prompt_len});
}

void ScheduledStep::add_decode_rows(const KvManager& manager, const DecodeRows& decode) {
  builder_.begin(manager, decode.rows(), step_.batch);
  for (size_t i = 0; i < decode.size(); ++i) {
    const auto row = static_cast<int32_t>(i);
    const int32_t slot = decode.slot(i);
    step_.row_slots.push_back(slot);
    rows_.push_back({.request = &decode.request(i), .samples = decode.samples(i), .last = decode.is_last(i)});
    if (!decode.is_known(i)) step_.feedback.push_back({.row = row, .slot = slot});
    if (!decode.samples(i)) continue;
    step_.samples.push_back({.logit_row = static_cast<int32_t>(step_.batch.logit_rows.size()), .slot = slot});
    step_.batch.logit_rows.push_back(row);
  }
}

void ScheduledStep::add_chunk(const KvManager& manager, LiveRequest& r, int64_t count) {
  const int64_t end = r.pages.num_tokens;
  const int64_t first = end - count;
  Row row{.request = &r, .last = r.all_scheduled()};
  step_.row_slots.push_back(r.slot);
  logit_rows_.clear();
  const auto next_logit_row = [&] { return static_cast<int32_t>(step_.batch.logit_rows.size() + logit_rows_.size()); };
  for (; r.num_logprobs_asked < std::min(end, r.num_logprobs_wanted); ++r.num_logprobs_asked) {
    const int64_t position = r.num_logprobs_asked;
    step_.prompt_logprobs.push_back(
        {.logit_row = next_logit_row(), .slot = r.slot, .target = r.tokens[static_cast<size_t>(position + 1)]});
    logit_rows_.push_back(static_cast<int32_t>(position - first));
    ++row.num_prompt_logprobs;
  }
  if (end == r.length() && r.length() < r.max_length) {
    row.samples = true;
    step_.samples.push_back({.logit_row = next_logit_row(), .slot = r.slot});
    logit_rows_.push_back(static_cast<int32_t>(count - 1));
    ++r.num_in_flight;
  }
  const auto tokens = std::span(r.tokens).subspan(static_cast<size_t>(first), static_cast<size_t>(count));
  builder_.add(manager, {.pages = r.pages, .tokens = tokens, .logit_rows = logit_rows_, .spans = r.spans}, step_.batch);
  rows_.push_back(row);
}

}  // namespace quaver
