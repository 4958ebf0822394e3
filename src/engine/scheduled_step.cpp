#include "engine/scheduled_step.h"

#include <algorithm>
#include <span>
#include <utility>

namespace quaver {
namespace {

constexpr int32_t kDrawnInLastStep = -1;

}  // namespace

void ScheduledStep::clear() {
  step_.row_slots.clear();
  step_.page_copies.clear();
  step_.starts.clear();
  step_.feedback.clear();
  step_.samples.clear();
  step_.prompt_logprobs.clear();
  rows_.clear();
  parts_.clear();
  logit_rows_.clear();
  first_logit_row_.clear();
  num_tokens_ = 0;
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

void ScheduledStep::add_row(RequestPtr request, int64_t count) {
  LiveRequest& r = *request;
  const int64_t end = r.pages.num_tokens;
  const int64_t first = end - count;
  first_logit_row_.push_back(logit_rows_.size());
  Row row{.request = std::move(request), .slot = r.slot, .last = r.all_scheduled()};

  if (end <= std::ssize(r.tokens)) {
    parts_.push_back({.pages = &r.pages,
                      .tokens = std::span(r.tokens).subspan(static_cast<size_t>(first), static_cast<size_t>(count))});
  } else {
    parts_.push_back({.pages = &r.pages, .tokens = {&kDrawnInLastStep, 1}});
    step_.feedback.push_back({.row = num_tokens_, .slot = r.slot});
  }
  if (r.params.prompt_logprobs >= 0) {
    for (; r.num_logprobs_asked < std::min(end, r.prompt_len - 1); ++r.num_logprobs_asked, ++row.num_prompt_logprobs) {
      step_.prompt_logprobs.push_back({.logit_row = static_cast<int32_t>(logit_rows_.size()),
                                       .slot = r.slot,
                                       .target = r.tokens[static_cast<size_t>(r.num_logprobs_asked + 1)]});
      logit_rows_.push_back(static_cast<int32_t>(r.num_logprobs_asked - first));
    }
  }
  if (end == r.length() && r.length() < r.max_length()) {
    row.samples = true;
    step_.samples.push_back({.logit_row = static_cast<int32_t>(logit_rows_.size()), .slot = r.slot});
    logit_rows_.push_back(static_cast<int32_t>(count - 1));
    ++r.num_in_flight;
  }
  step_.row_slots.push_back(r.slot);
  num_tokens_ += static_cast<int32_t>(count);
  rows_.push_back(std::move(row));
}

void ScheduledStep::build(const KvManager& manager) {
  for (size_t row = 0; row < parts_.size(); ++row) {
    const size_t begin = first_logit_row_[row];
    const size_t end = row + 1 < parts_.size() ? first_logit_row_[row + 1] : logit_rows_.size();
    parts_[row].logit_rows = std::span(logit_rows_).subspan(begin, end - begin);
  }
  builder_.build(manager, parts_, step_.batch);
}

}  // namespace quaver
