// What the results of steps mean for their requests.
#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "core/check.h"
#include "engine/scheduler.h"

namespace quaver {
namespace {

Output::Details& details_of(Output& output) {
  if (output.details == nullptr) output.details = std::make_unique<Output::Details>();
  return *output.details;
}

}  // namespace

ScheduledStep& Scheduler::newest() {
  return steps_[static_cast<size_t>((oldest_ + num_in_flight_ - 1) % Runner::kMaxInFlight)];
}

void Scheduler::pop_oldest() {
  oldest().clear();
  oldest_ = (oldest_ + 1) % Runner::kMaxInFlight;
  --num_in_flight_;
}

void Scheduler::update(StepResult&& result, std::vector<Output>& outputs) {
  check_as(ErrorKind::kInternal, num_in_flight_ > 0, "results: expected none without a step in flight");
  const ScheduledStep& step = oldest();
  const Step& asked = step.step();
  check_shape(result);
  for (const StepResult::Failure& failure : result.failures) {
    const auto row = static_cast<size_t>(std::ranges::find(asked.row_slots, failure.slot) - asked.row_slots.begin());
    if (row >= step.rows().size() || step.rows()[row].request->stage == Stage::kEnded) continue;
    // Its pages may hold what is not a number, and a prefix of it may be in the index.
    manager_.forget_prefixes();
    end_with_error(*step.rows()[row].request, failure.reason, outputs);
  }
  outputs.reserve(outputs.size() + step.rows().size());
  size_t sample = 0;
  size_t prompt_logprob = 0;
  for (size_t i = 0; i < step.rows().size(); ++i) {
    const ScheduledStep::Row& row = step.rows()[i];
    const bool plain = row.samples && !row.last && row.num_prompt_logprobs == 0;
    if (plain && decode_.is_plain(i, row.request, result.tokens[sample])) {
      outputs.push_back(decode_.append_plain(i, result.tokens[sample]));
      ++totals_.generated_tokens_total;
    } else if (row.request->stage != Stage::kEnded) {  // else it stopped while this step was in flight
      consume(row, result, sample, prompt_logprob, outputs);
    }
    sample += row.samples ? 1 : 0;
    prompt_logprob += static_cast<size_t>(row.num_prompt_logprobs);
  }
  pop_oldest();
}

void Scheduler::check_shape(const StepResult& result) {
  if (oldest().rows().empty()) return;  // a result for nobody
  const size_t num_samples = oldest().step().samples.size();
  const size_t num_prompt_logprobs = oldest().step().prompt_logprobs.size();
  check_as(ErrorKind::kInternal,
           result.tokens.size() == num_samples && result.logprobs.size() == num_samples &&
               result.prompt_logprobs.size() == num_prompt_logprobs,
           "results of a step ", result.tokens.size(), ", ", result.logprobs.size(), ", ",
           result.prompt_logprobs.size(), ": expected ", num_samples, " tokens with logprobs and ", num_prompt_logprobs,
           " prompt logprobs");
}

void Scheduler::consume(const ScheduledStep::Row& row, StepResult& result, size_t sample, size_t prompt_logprob,
                        std::vector<Output>& outputs) {
  if (!row.samples && row.num_prompt_logprobs == 0 && !row.last) return;  // a chunk in the middle of a prompt
  LiveRequest& r = *row.request;
  Output& output = output_of(r, outputs);
  if (row.num_prompt_logprobs > 0) {
    const auto first = result.prompt_logprobs.begin() + static_cast<int64_t>(prompt_logprob);
    details_of(output).prompt_logprobs.assign(std::move_iterator(first),
                                              std::move_iterator(first + row.num_prompt_logprobs));
    r.num_logprobs_seen += row.num_prompt_logprobs;
  }
  if (row.samples) {
    const int32_t token = result.tokens[sample];
    if (r.stage == Stage::kDecode) {
      decode_.append(r, token);
    } else {
      --r.num_in_flight;
      r.tokens.push_back(token);
    }
    ++totals_.generated_tokens_total;
    output.token = token;
    if (result.logprobs[sample]) details_of(output).logprobs = std::move(result.logprobs[sample]);
    if (std::ranges::find(r.stop_ids, token) != r.stop_ids.end()) {
      end(r, FinishReason::kStop, output);
      return;
    }
  }
  if (row.last) end(r, FinishReason::kLength, output);
}

void Scheduler::fail_step(std::string_view reason, std::vector<Output>& outputs) {
  check_as(ErrorKind::kInternal, num_in_flight_ > 0, "failure: expected none without a step in flight");
  const bool wanted = oldest_is_wanted();
  totals_.failed_steps_total += wanted ? 1 : 0;
  for (const ScheduledStep::Row& row : oldest().rows()) {
    if (row.request->stage != Stage::kEnded) end_with_error(*row.request, reason, outputs);
  }
  pop_oldest();
  if (!wanted) return;
  // Pages may not hold what the index says, and the step in flight may have read them.
  manager_.forget_prefixes();
  while (!running_.empty()) preempt(*running_.back());
  if (num_in_flight_ > 0) start_over(oldest());
}

/// The step behind a failed one: its result will be dropped, its requests wait as before.
void Scheduler::start_over(ScheduledStep& later) {
  for (const ScheduledStep::Row& row : later.rows()) {
    LiveRequest& r = *row.request;
    if (r.stage == Stage::kEnded) continue;
    if (r.stage == Stage::kDraining) {
      r.stage = Stage::kWaiting;
      --num_draining_;
      waiting_.push_front(&r);
    }
    r.num_in_flight = 0;
    r.num_logprobs_asked = r.num_logprobs_seen;
  }
  std::ranges::sort(waiting_, {}, &LiveRequest::arrival);
  later.drop_rows();
}

void Scheduler::fail_all(std::string_view reason, std::vector<Output>& outputs) {
  while (!live_.empty()) end_with_error(*live_.begin()->second, reason, outputs);
}

Output& Scheduler::output_of(const LiveRequest& request, std::vector<Output>& outputs) {
  Output& output = outputs.emplace_back();
  output.request_id = request.id;
  output.cached_tokens = request.cached_tokens;
  return output;
}

void Scheduler::end_with_error(LiveRequest& r, std::string_view reason, std::vector<Output>& outputs) {
  Output& output = output_of(r, outputs);
  details_of(output).error = reason;
  end(r, FinishReason::kError, output);
}

}  // namespace quaver
