#include "engine/scheduled_step.h"

#include <algorithm>
#include <array>
#include <span>

namespace quaver {
namespace {

constexpr std::array<int32_t, 1> kDrawnInLastStep{-1};

}  // namespace

void ScheduledStep::begin(const KvManager& manager) {
  step_.row_slots.clear();
  step_.page_copies.clear();
  step_.starts.clear();
  step_.feedback.clear();
  step_.samples.clear();
  step_.prompt_logprobs.clear();
  builder_.begin(manager, step_.batch);
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

void ScheduledStep::copy_pages(const std::vector<PageCopy>& copies) {
  step_.page_copies.insert(step_.page_copies.end(), copies.begin(), copies.end());
}

void ScheduledStep::add_row(const KvManager& manager, LiveRequest& r, int64_t count) {
  const int64_t end = r.pages.num_tokens;
  const int64_t first = end - count;
  Row row{.request = &r, .slot = r.slot, .last = r.all_scheduled()};
  step_.row_slots.push_back(r.slot);

  std::span<const int32_t> tokens = kDrawnInLastStep;
  if (end <= std::ssize(r.tokens)) {
    tokens = std::span(r.tokens).subspan(static_cast<size_t>(first), static_cast<size_t>(count));
  } else {
    step_.feedback.push_back({.row = static_cast<int32_t>(step_.batch.num_tokens()), .slot = r.slot});
  }

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
  builder_.add(manager, {.pages = r.pages, .tokens = tokens, .logit_rows = logit_rows_}, step_.batch);
  rows_.push_back(row);
}

}  // namespace quaver
