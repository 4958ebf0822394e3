#include "engine/scheduler.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <string>
#include <utility>

#include "core/check.h"

namespace quaver {

int64_t max_chunk(const EngineOptions& options) noexcept {
  if (options.prefill_chunk_tokens == 0) return options.max_num_batched_tokens;
  return std::min(options.prefill_chunk_tokens, options.max_num_batched_tokens);
}

Scheduler::Scheduler(SchedulerLimits limits)
    : options_(limits.options),
      eos_token_ids_(std::move(limits.eos_token_ids)),
      manager_(std::move(limits.plan), limits.num_pages, options_.prefix_caching, limits.prefix_hash) {
  check(options_.max_num_seqs > 0, "max_num_seqs ", options_.max_num_seqs, ": expected at least 1");
  check(options_.max_num_batched_tokens > 0, "max_num_batched_tokens ", options_.max_num_batched_tokens,
        ": expected at least 1");
  check(options_.prefill_chunk_tokens >= 0, "prefill_chunk_tokens ", options_.prefill_chunk_tokens, ": expected >= 0");
  for (int64_t slot = options_.max_num_seqs - 1; slot >= 0; --slot) free_slots_.push_back(static_cast<int32_t>(slot));
}

void Scheduler::add(Request request) {
  auto live = std::make_unique<LiveRequest>(std::move(request), eos_token_ids_);
  live->arrival = ++last_arrival_;
  LiveRequest* const r = live.get();
  const bool added = live_.try_emplace(r->id, std::move(live)).second;
  check(added, "request id ", r->id, ": expected one that is not live");
  waiting_.push_back(r);
}

// ---- building a step ----

const Step* Scheduler::schedule() {
  check_as(ErrorKind::kInternal, num_in_flight_ < Runner::kMaxInFlight, "steps in flight ", num_in_flight_,
           ": expected fewer than ", Runner::kMaxInFlight);
  ScheduledStep& step = steps_[static_cast<size_t>((oldest_ + num_in_flight_) % Runner::kMaxInFlight)];
  step.begin(manager_);
  chunks_.clear();
  prefill_budget_ = options_.max_num_batched_tokens;
  preempted_ = false;

  schedule_running(step);
  // What a preemption freed belongs to those that run: admitting in the same step could take it right back.
  if (!preempted_) schedule_waiting(step);

  for (LiveRequest* const request : decoding_) step.add_row(manager_, *request, 1);
  for (const Chunk& chunk : chunks_) step.add_row(manager_, *chunk.request, chunk.count);
  if (step.rows().empty()) {
    check_as(ErrorKind::kInternal, num_in_flight_ > 0 || live_.empty(), "requests ", live_.size(),
             " with nothing to run: expected progress in every step");
    return nullptr;
  }
  ++num_in_flight_;
  ++totals_.steps_total;
  settle(step);
  return &step.step();
}

/// Pages and tokens for those that run, the oldest first. Where pages are short the youngest gives its own up, so the
/// oldest always gets on and every request ends.
void Scheduler::schedule_running(ScheduledStep& step) {
  for (size_t i = 0; i < running_.size(); ++i) {
    LiveRequest& r = *running_[i];
    int64_t count = 1;
    if (r.stage == Stage::kPrefill) {
      count = std::min({r.prefill_end - r.pages.num_tokens, max_chunk(options_), prefill_budget_});
      if (count == 0) continue;
    }
    while (r.is_running() && !manager_.can_append(r.pages, count)) preempt(*running_.back());
    if (!r.is_running()) return;
    advance(r, count, step);
  }
}

void Scheduler::schedule_waiting(ScheduledStep& step) {
  while (!waiting_.empty() && !free_slots_.empty() && prefill_budget_ > 0) {
    LiveRequest& r = *waiting_.front();
    // A token that was in flight when it was preempted is in by now: of two steps in flight the older is done.
    static_assert(Runner::kMaxInFlight == 2);
    if (!admit(r)) return;
    waiting_.pop_front();
    running_.push_back(&r);
    step.start_slot(r);
    advance(r, std::min({r.prefill_end - r.pages.num_tokens, max_chunk(options_), prefill_budget_}), step);
  }
}

/// Gives a waiting request its slot, and the pages of a cached prefix, if all that it has to compute fits beside what
/// those that run have still to compute: two half-admitted prompts would wait for each other's pages.
bool Scheduler::admit(LiveRequest& r) {
  int64_t reserved = 0;
  int64_t full_groups = 0;
  for (const CacheGroup& group : manager_.plan().groups) full_groups += group.window == 0 ? 1 : 0;
  for (const LiveRequest* const other : running_) {
    // Decoding requests grow by a page of every full group within a page's time; without room for that, newcomers
    // would be preempted soon.
    reserved += pages_still_needed(*other) + full_groups;
  }
  const int64_t before = manager_.num_free_pages() - reserved;
  if (r.arrival == refused_arrival_ && before <= refused_available_) return false;

  // In batch-invariant mode generated tokens are computed as they were at first, one a step.
  r.prefill_end = options_.batch_invariant ? r.prompt_len : std::ssize(r.tokens);
  int64_t cached = 0;
  if (r.params.prompt_logprobs < 0) {
    cached = manager_.match_prefix(r.pages, std::span(r.tokens).first(static_cast<size_t>(r.prefill_end)), r.salt);
  }
  r.pages.salt = r.salt;
  if (pages_still_needed(r) > manager_.num_free_pages() - reserved) {
    manager_.release(r.pages);
    refused_arrival_ = r.arrival;
    refused_available_ = before;
    return false;
  }
  r.stage = Stage::kPrefill;
  r.slot = free_slots_.back();
  free_slots_.pop_back();
  if (!r.admitted_before) {
    r.admitted_before = true;
    r.cached_tokens = cached;
    totals_.prompt_tokens_total += r.prompt_len;
    totals_.cached_tokens_total += cached;
  }
  return true;
}

/// Pages that a request needs, beside those it holds, until all its known tokens are computed.
int64_t Scheduler::pages_still_needed(const LiveRequest& request) const {
  const int64_t known = std::ssize(request.tokens);
  if (request.pages.num_tokens >= known) return 0;
  const int64_t most = manager_.plan().blocks_for(known, std::min(max_chunk(options_), known));
  return std::max<int64_t>(0, most - KvManager::num_held_pages(request.pages));
}

/// Makes room for the next `count` tokens of a running request.
void Scheduler::advance(LiveRequest& r, int64_t count, ScheduledStep& step) {
  step.copy_pages(manager_.append(r.pages, count));
  // Offered before it is computed: whoever finds these pages runs in this step or later, and a layer writes the keys of
  // all rows before it reads any. Waiting for the result would lose what sliding windows release meanwhile.
  // In batch-invariant mode only prompts are: keys of generated tokens come from decode steps.
  const int64_t committable =
      std::min(r.pages.num_tokens, options_.batch_invariant ? r.prompt_len : std::ssize(r.tokens));
  if (options_.prefix_caching && committable - r.pages.num_committed >= manager_.plan().largest_page_tokens) {
    manager_.commit(r.pages, std::span(r.tokens).first(static_cast<size_t>(committable)));
  }
  if (r.stage != Stage::kPrefill) return;
  prefill_budget_ -= count;
  chunks_.push_back({.request = &r, .count = count});
}

/// Where the requests of a step that was just built go from here.
void Scheduler::settle(const ScheduledStep& step) {
  for (const ScheduledStep::Row& row : step.rows()) {
    LiveRequest& r = *row.request;
    if (row.last) {
      give_up_resources(r);
      r.stage = Stage::kDraining;
      ++num_draining_;
      std::erase(running_, &r);
    } else if (r.stage == Stage::kPrefill && r.pages.num_tokens == r.prefill_end) {
      r.stage = Stage::kDecode;
      r.decode_row = decoding_.size();
      decoding_.push_back(&r);
    }
  }
}

// ---- results ----

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
  check_as(ErrorKind::kInternal,
           step.rows().empty() ||
               (result.tokens.size() == asked.samples.size() && result.logprobs.size() == asked.samples.size() &&
                result.prompt_logprobs.size() == asked.prompt_logprobs.size()),
           "results of a step ", result.tokens.size(), ", ", result.logprobs.size(), ", ",
           result.prompt_logprobs.size(), ": expected ", asked.samples.size(), " tokens with logprobs and ",
           asked.prompt_logprobs.size(), " prompt logprobs");
  for (const StepResult::Failure& failure : result.failures) {
    const auto row = std::ranges::find(step.rows(), failure.slot, &ScheduledStep::Row::slot);
    if (row == step.rows().end() || row->request->stage == Stage::kEnded) continue;
    // Its pages may hold what is not a number, and a prefix of it may be in the index.
    manager_.forget_prefixes();
    end(*row->request, FinishReason::kError, output_of(*row->request, outputs)).error = failure.reason;
  }
  size_t sample = 0;
  size_t prompt_logprob = 0;
  for (const ScheduledStep::Row& row : step.rows()) {
    // A request that stopped while this step was in flight left a row that nobody wants.
    if (row.request->stage != Stage::kEnded) consume(row, result, sample, prompt_logprob, outputs);
    sample += row.samples ? 1 : 0;
    prompt_logprob += static_cast<size_t>(row.num_prompt_logprobs);
  }
  pop_oldest();
}

void Scheduler::consume(const ScheduledStep::Row& row, StepResult& result, size_t sample, size_t prompt_logprob,
                        std::vector<Output>& outputs) {
  if (!row.samples && row.num_prompt_logprobs == 0 && !row.last) return;  // a chunk in the middle of a prompt
  LiveRequest& r = *row.request;
  Output& output = output_of(r, outputs);
  if (row.num_prompt_logprobs > 0) {
    const auto first = result.prompt_logprobs.begin() + static_cast<int64_t>(prompt_logprob);
    output.prompt_logprobs.assign(std::move_iterator(first), std::move_iterator(first + row.num_prompt_logprobs));
    r.num_logprobs_seen += row.num_prompt_logprobs;
  }
  if (row.samples) {
    const int32_t token = result.tokens[sample];
    --r.num_in_flight;
    r.tokens.push_back(token);
    ++totals_.generated_tokens_total;
    output.token = token;
    output.logprobs = std::move(result.logprobs[sample]);
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
    if (row.request->stage != Stage::kEnded) {
      end(*row.request, FinishReason::kError, output_of(*row.request, outputs)).error = reason;
    }
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
  while (!live_.empty()) {
    LiveRequest& r = *live_.begin()->second;
    end(r, FinishReason::kError, output_of(r, outputs)).error = reason;
  }
}

// ---- giving up and ending ----

void Scheduler::abort(uint64_t id, std::vector<Output>& outputs) {
  const auto entry = live_.find(id);
  if (entry == live_.end()) return;
  LiveRequest& r = *entry->second;
  end(r, FinishReason::kAbort, output_of(r, outputs));
}

void Scheduler::preempt(LiveRequest& r) {
  give_up_resources(r);
  r.stage = Stage::kWaiting;
  std::erase(running_, &r);
  waiting_.push_front(&r);
  preempted_ = true;
  ++totals_.preemptions_total;
}

void Scheduler::give_up_resources(LiveRequest& r) {
  if (r.stage == Stage::kDecode) stop_decoding(r);
  manager_.release(r.pages);
  free_slots_.push_back(std::exchange(r.slot, -1));
}

void Scheduler::stop_decoding(const LiveRequest& r) {
  LiveRequest* const last = decoding_.back();
  decoding_[r.decode_row] = last;
  last->decode_row = r.decode_row;
  decoding_.pop_back();
}

Output& Scheduler::output_of(const LiveRequest& request, std::vector<Output>& outputs) {
  Output& output = outputs.emplace_back();
  output.request_id = request.id;
  output.cached_tokens = request.cached_tokens;
  return output;
}

Output& Scheduler::end(LiveRequest& r, FinishReason reason, Output& last_output) {
  if (r.is_running()) {
    give_up_resources(r);
    std::erase(running_, &r);
  }
  if (r.stage == Stage::kWaiting) std::erase(waiting_, &r);
  if (r.stage == Stage::kDraining) --num_draining_;
  r.stage = Stage::kEnded;
  auto entry = live_.extract(r.id);
  if (num_in_flight_ > 0) newest().keep(std::move(entry.mapped()));
  last_output.finish_reason = reason;
  return last_output;
}

EngineStats Scheduler::stats() const {
  EngineStats stats = totals_;
  stats.num_running = std::ssize(running_) + num_draining_;
  stats.num_waiting = std::ssize(waiting_);
  stats.num_pages = manager_.num_pages();
  stats.num_free_pages = manager_.num_free_pages();
  return stats;
}

}  // namespace quaver
