#include "engine/scheduler.h"

#include <algorithm>
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
      least_chunk_(limits.least_chunk),
      manager_(std::move(limits.plan), limits.num_pages, options_.prefix_caching, limits.prefix_hash) {
  check(options_.max_num_seqs > 0, "max_num_seqs ", options_.max_num_seqs, ": expected at least 1");
  check(options_.max_num_batched_tokens > 0, "max_num_batched_tokens ", options_.max_num_batched_tokens,
        ": expected at least 1");
  check(options_.prefill_chunk_tokens >= 0, "prefill_chunk_tokens ", options_.prefill_chunk_tokens, ": expected >= 0");
  const bool gets_on = max_chunk(options_) >= 2 * least_chunk_ - 1;  // with one token less the last ones could not run
  check(gets_on,
        options_.prefill_chunk_tokens > 0 ? "prefill_chunk_tokens, max_num_batched_tokens " : "max_num_batched_tokens ",
        max_chunk(options_), ": expected at least ", 2 * least_chunk_ - 1);
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
  step.begin();
  chunks_.clear();
  prefill_budget_ = options_.max_num_batched_tokens;
  preempted_ = false;

  schedule_running(step);
  // What a preemption freed belongs to those that run: admitting in the same step could take it right back.
  if (!preempted_) schedule_waiting(step);

  decode_.advance();
  step.add_decode_rows(manager_, decode_);
  for (const Chunk& chunk : chunks_) step.add_chunk(manager_, *chunk.request, chunk.count);
  if (step.rows().empty()) {
    check_as(ErrorKind::kInternal, num_in_flight_ > 0 || live_.empty(), "requests ", live_.size(),
             " with nothing to run: expected progress in every step");
    return nullptr;
  }
  ++num_in_flight_;
  ++totals_.steps_total;
  settle();
  return &step.step();
}

/// Pages for those that run and need some, the oldest first. Where pages are short the youngest gives its own up, so
/// the oldest always gets on and every request ends.
void Scheduler::schedule_running(ScheduledStep& step) {
  due_.assign(prefilling_.begin(), prefilling_.end());
  decode_.find_special(due_);
  std::ranges::sort(due_, {}, &LiveRequest::arrival);
  for (LiveRequest* const request : due_) {
    LiveRequest& r = *request;
    if (!r.is_running()) return;  // it made room, as did all that are younger
    int64_t count = 1;
    if (r.stage == Stage::kPrefill) {
      count = next_chunk(r);
      if (count == 0) continue;
    } else {
      decode_.write_back(r);
    }
    while (!make_room(r, count, step)) {
      preempt(*running_.back());
      if (!r.is_running()) return;
    }
  }
}

/// The number of tokens up to which a decoding request needs no page, has no block for the prefix index and does not
/// end.
int64_t Scheduler::quiet_until(const LiveRequest& r) const {
  int64_t until = std::min(r.pages.unchanged_until, r.tokens_to_store() - 1);
  if (options_.prefix_caching && !options_.batch_invariant) {
    // The token that completes a block is known one step after it was drawn. A block that the index refused is offered
    // again with the next one.
    const int64_t block = manager_.plan().largest_page_tokens;
    const int64_t complete = r.pages.num_committed + block;
    until = std::min(until, complete < r.pages.num_tokens ? r.pages.num_tokens + block : complete);
  }
  return until;
}

void Scheduler::schedule_waiting(ScheduledStep& step) {
  while (!waiting_.empty() && !free_slots_.empty() && prefill_budget_ > 0) {
    LiveRequest& r = *waiting_.front();
    // A token that was in flight when it was preempted is in by now: of two steps in flight the older is done.
    static_assert(Runner::kMaxInFlight == 2);
    if (!admit(r)) return;
    waiting_.pop_front();
    running_.push_back(&r);
    prefilling_.push_back(&r);
    due_.push_back(&r);
    step.start_slot(r);
    // None where the rest of the budget is too small for the image that it begins with, or for any chunk: the next step
    // has room for it.
    if (const int64_t count = next_chunk(r); count > 0) {
      check_as(ErrorKind::kInternal, make_room(r, count, step),
               "pages of an admitted prompt: expected them to be free");
    }
  }
}

/// Gives a waiting request its slot, and the pages of a cached prefix, if all that it has to compute fits beside what
/// those that run have still to compute: two half-admitted prompts would wait for each other's pages.
bool Scheduler::admit(LiveRequest& r) {
  const int64_t reserved = reserved_pages();
  const int64_t before = manager_.num_free_pages() - reserved;
  if (r.arrival == refused_arrival_ && before <= refused_available_) return false;

  // In batch-invariant mode generated tokens are computed as they were at first, one a step.
  r.prefill_end = options_.batch_invariant ? r.prompt_len : std::ssize(r.tokens);
  int64_t cached = 0;
  if (r.params.prompt_logprobs < 0) {
    const int64_t left = r.prefill_end < least_chunk_ ? 0 : least_chunk_ - 1;  // beside the one that always is
    const auto known = std::span(r.tokens).first(static_cast<size_t>(r.prefill_end - left));
    cached = manager_.match_prefix(r.pages, known, r.salt, r.spans);
  }
  r.pages.salt = r.salt;
  if (pages_still_needed(r, std::ssize(r.tokens)) > manager_.num_free_pages() - reserved) {
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

/// Pages that those that run will want soon.
int64_t Scheduler::reserved_pages() const {
  // Decoding requests grow by a page of every full group within a page's time; without room for that, newcomers would
  // be preempted soon.
  const int64_t full_groups = std::ranges::count(manager_.plan().groups, 0, &CacheGroup::window);
  int64_t pages = std::ssize(running_) * full_groups;
  for (const LiveRequest* const other : prefilling_) pages += pages_still_needed(*other, std::ssize(other->tokens));
  for (size_t row = 0; row < decode_.size(); ++row) {
    if (decode_.is_known(row)) pages += pages_still_needed(decode_.request(row), decode_.num_known(row));
  }
  return pages;
}

/// Pages that a request needs, beside those it holds, until all its known tokens are computed.
int64_t Scheduler::pages_still_needed(const LiveRequest& request, int64_t num_known) const {
  if (request.pages.num_tokens >= num_known) return 0;
  const int64_t most = manager_.plan().blocks_for(num_known, std::min(max_chunk(options_), num_known));
  return std::max<int64_t>(0, most - KvManager::num_held_pages(request.pages));
}

/// Tokens of a prompt that run next: as many as a chunk and the budget allow, not ending inside an image, and neither
/// these nor those that are left fewer than the least chunk.
int64_t Scheduler::next_chunk(const LiveRequest& request) const {
  const int64_t first = request.pages.num_tokens;
  const int64_t rest = request.prefill_end - first;
  int64_t most = std::min({rest, max_chunk(options_), prefill_budget_});
  if (most < rest) most = std::min(most, rest - least_chunk_);
  if (most < std::min(rest, least_chunk_)) return 0;
  return boundary_outside_spans(request.spans, first + most) - first;
}

/// Pages for the next `count` tokens of a running request, which then run in this step. False if they are short.
bool Scheduler::make_room(LiveRequest& r, int64_t count, ScheduledStep& step) {
  if (!manager_.try_append(r.pages, count, step.page_copies())) return false;
  // Offered before it is computed: whoever finds these pages runs in this step or later, and a layer writes the keys of
  // all rows before it reads any. Waiting for the result would lose what sliding windows release meanwhile.
  // In batch-invariant mode only prompts are: keys of generated tokens come from decode steps.
  const int64_t committable =
      std::min(r.pages.num_tokens, options_.batch_invariant ? r.prompt_len : std::ssize(r.tokens));
  if (options_.prefix_caching && committable - r.pages.num_committed >= manager_.plan().largest_page_tokens) {
    manager_.commit(r.pages, std::span(r.tokens).first(static_cast<size_t>(committable)), r.spans);
  }
  if (r.stage == Stage::kDecode) {
    decode_.prepare(r, quiet_until(r));
  } else {
    prefill_budget_ -= count;
    chunks_.push_back({.request = &r, .count = count});
  }
  return true;
}

/// Where the requests of the step that was just built go from here.
void Scheduler::settle() {
  for (LiveRequest* const request : due_) {
    LiveRequest& r = *request;
    if (!r.is_running()) continue;
    if (r.all_scheduled()) {
      give_up_resources(r);
      r.stage = Stage::kDraining;
      ++num_draining_;
      std::erase(running_, &r);
    } else if (r.stage == Stage::kPrefill && r.pages.num_tokens == r.prefill_end) {
      std::erase(prefilling_, &r);
      r.stage = Stage::kDecode;
      decode_.push(r);
    }
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
  if (r.stage == Stage::kDecode) {
    decode_.remove(r);
  } else {
    std::erase(prefilling_, &r);
  }
  manager_.release(r.pages);
  free_slots_.push_back(std::exchange(r.slot, -1));
}

void Scheduler::end(LiveRequest& r, FinishReason reason, Output& last_output) {
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
