// Decides what runs: which tokens of which requests make the next step, and what a step's result means for them. Pure
// bookkeeping without a thread or a device; docs/scheduling.md has the policy and its reasons.
//
// Steps run strictly in the order in which they were scheduled, one behind the other. So whatever a request gives up
// (pages, its slot) may go to another one in the next step that is scheduled, although steps in flight still use it:
// they are done with it before that step begins.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/decode_rows.h"
#include "engine/live_request.h"
#include "engine/runner.h"
#include "engine/scheduled_step.h"
#include "kv_cache/manager.h"
#include "quaver/engine.h"

namespace quaver {

/// What a scheduler may use. `options` as given to Engine; max_model_len is the callers' matter.
struct SchedulerLimits {
  CachePlan plan;
  int64_t num_pages = 0;
  EngineOptions options{};
  std::vector<int32_t> eos_token_ids{};
  int64_t least_chunk = 1;  ///< Runner::least_chunk()
  PrefixIndex::HashFunction prefix_hash = hash_token_block;
};

/// Most tokens of one request in a step.
[[nodiscard]] int64_t max_chunk(const EngineOptions& options) noexcept;

class Scheduler {
 public:
  explicit Scheduler(SchedulerLimits limits);

  /// Queues a request that passed the checks of Engine::add().
  void add(Request request);
  /// Ends a request; its pages and its slot are free for the next step. Unknown ids are ignored.
  void abort(uint64_t id, std::vector<Output>& outputs);

  /// The next step, to be launched behind those in flight; nullptr if there is nothing to run before a result is in.
  /// It stays valid until its update() or fail_step(). At most Runner::kMaxInFlight may be in flight.
  [[nodiscard]] const Step* schedule();
  /// The result of the oldest step in flight.
  void update(StepResult&& result, std::vector<Output>& outputs);
  /// The oldest step in flight failed: its requests end with kError. What was scheduled behind it starts over.
  void fail_step(std::string_view reason, std::vector<Output>& outputs);
  /// Ends every request with kError.
  void fail_all(std::string_view reason, std::vector<Output>& outputs);

  /// False for a step behind one that failed: its result, or its error, is for nobody.
  [[nodiscard]] bool oldest_is_wanted() const noexcept { return !steps_[static_cast<size_t>(oldest_)].rows().empty(); }
  [[nodiscard]] int num_in_flight() const noexcept { return num_in_flight_; }
  [[nodiscard]] bool idle() const noexcept { return live_.empty() && num_in_flight_ == 0; }
  [[nodiscard]] EngineStats stats() const;
  [[nodiscard]] const KvManager& manager() const noexcept { return manager_; }

 private:
  [[nodiscard]] ScheduledStep& oldest() { return steps_[static_cast<size_t>(oldest_)]; }
  [[nodiscard]] ScheduledStep& newest();
  void pop_oldest();

  // schedule()
  void schedule_running(ScheduledStep& step);
  [[nodiscard]] int64_t quiet_until(const LiveRequest& r) const;
  void schedule_waiting(ScheduledStep& step);
  bool admit(LiveRequest& r);
  [[nodiscard]] int64_t pages_still_needed(const LiveRequest& request, int64_t num_known) const;
  [[nodiscard]] int64_t reserved_pages() const;
  [[nodiscard]] int64_t next_chunk(const LiveRequest& request) const;
  [[nodiscard]] bool make_room(LiveRequest& r, int64_t count, ScheduledStep& step);
  void settle();

  void check_shape(const StepResult& result);
  void consume(const ScheduledStep::Row& row, StepResult& result, size_t sample, size_t prompt_logprob,
               std::vector<Output>& outputs);
  void preempt(LiveRequest& r);
  void start_over(ScheduledStep& later);
  void give_up_resources(LiveRequest& r);
  [[nodiscard]] static Output& output_of(const LiveRequest& request, std::vector<Output>& outputs);
  void end(LiveRequest& r, FinishReason reason, Output& last_output);
  void end_with_error(LiveRequest& r, std::string_view reason, std::vector<Output>& outputs);

  EngineOptions options_;
  std::vector<int32_t> eos_token_ids_;
  int64_t least_chunk_;
  KvManager manager_;
  std::unordered_map<uint64_t, std::unique_ptr<LiveRequest>> live_;
  std::deque<LiveRequest*> waiting_;      // by arrival; all arrived later than those that run
  std::vector<LiveRequest*> running_;     // by arrival
  std::vector<LiveRequest*> prefilling_;  // of them, by arrival; all others are in decode_
  DecodeRows decode_;                     // a request keeps its row while it can, see BatchBuilder
  std::vector<int32_t> free_slots_;

  std::array<ScheduledStep, Runner::kMaxInFlight> steps_;
  int oldest_ = 0;
  int num_in_flight_ = 0;

  // Of the step under construction.
  struct Chunk {
    LiveRequest* request = nullptr;
    int64_t count = 0;
  };
  std::vector<Chunk> chunks_;
  std::vector<LiveRequest*> due_;  // whose pages are to be seen to, by arrival
  int64_t prefill_budget_ = 0;
  bool preempted_ = false;

  // The first in the queue when it last did not fit: looked at again once more pages are to be had.
  uint64_t refused_arrival_ = 0;
  int64_t refused_available_ = 0;

  uint64_t last_arrival_ = 0;
  int64_t num_draining_ = 0;
  EngineStats totals_;
};

}  // namespace quaver
