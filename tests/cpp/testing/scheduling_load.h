// Host time of scheduling, without a model: requests that decode on the cache groups of Gemma 4 31B.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <limits>
#include <utility>
#include <vector>

#include "core/check.h"
#include "engine/scheduler.h"
#include "testing/random.h"

namespace quaver::testing {

/// 60 layers, every sixth with full attention: 1 full and 5 sliding groups with pages of 128 and 64 tokens.
inline CachePlan gemma4_31b_plan() {
  std::vector<LayerCacheSpec> layers;
  for (int layer = 0; layer < 60; ++layer) {
    if (layer % 6 == 5) {
      layers.push_back({.layout = {.num_kv_heads = 4, .head_dim_k = 512, .head_dim_v = 512}, .window = 0});
    } else {
      layers.push_back({.layout = {.num_kv_heads = 16, .head_dim_k = 256, .head_dim_v = 256}, .window = 1024});
    }
  }
  return plan_cache(layers, 64);
}

/// A scheduler with `num_seqs` requests of about `context` tokens, past their prompts. Lengths differ by one from one
/// to the next, so that every step has its share of new pages.
class SchedulingLoad {
 public:
  SchedulingLoad(int64_t num_seqs, int64_t context)
      : scheduler_({.plan = gemma4_31b_plan(),
                    .num_pages = num_seqs * gemma4_31b_plan().blocks_for(context + kRoom, kChunk),
                    .options = {.max_num_seqs = num_seqs, .max_num_batched_tokens = kChunk}}) {
    Random random(1);
    for (int64_t i = 0; i < num_seqs; ++i) {
      std::vector<int32_t> prompt(static_cast<size_t>(context + i % 128));
      for (int32_t& token : prompt) token = static_cast<int32_t>(random.below(262144));
      scheduler_.add({.id = static_cast<uint64_t>(i), .prompt = std::move(prompt), .params = {.max_tokens = kRoom}});
    }
    while (in_flight_.empty() || in_flight_.back()->batch.num_tokens() != num_seqs) step();
    for (int i = 0; i < 200; ++i) step();  // every table has grown once, all memory has been touched
  }

  /// Seconds for one step: what the engine's thread does between two launches, StepResult ready.
  double step() {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point start = Clock::now();
    const Step* const step = scheduler_.schedule();
    Clock::duration time = Clock::now() - start;
    check(step != nullptr, "steps of the load: expected more than that");
    in_flight_.push_back(step);
    if (std::ssize(in_flight_) == Runner::kMaxInFlight) {
      result_.tokens.assign(in_flight_.front()->samples.size(), 5);
      result_.logprobs.assign(result_.tokens.size(), {});
      in_flight_.pop_front();
      outputs_.clear();
      const Clock::time_point update = Clock::now();
      scheduler_.update(std::move(result_), outputs_);
      time += Clock::now() - update;
    }
    return std::chrono::duration<double>(time).count();
  }

  /// Seconds to copy the batch of the last step into memory that another copy has used before.
  double copy() {
    const auto start = std::chrono::steady_clock::now();
    copy_ = in_flight_.back()->batch;
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  /// What other work between two steps does to this core's caches: 16 MB of other memory.
  void evict() {
    for (size_t i = 0; i < other_memory_.size(); i += 64) ++other_memory_[i];
  }

  [[nodiscard]] int64_t batch_bytes() const {
    const Batch& batch = in_flight_.back()->batch;
    size_t bytes = sizeof(int32_t) * (batch.token_ids.size() + batch.positions.size() + batch.query_start.size() +
                                      batch.seq_lens.size() + batch.logit_rows.size());
    for (const Batch::Group& group : batch.groups) {
      bytes += sizeof(int32_t) * group.block_table.size() + sizeof(int64_t) * group.slots.size();
    }
    return static_cast<int64_t>(bytes);
  }

 private:
  static constexpr int64_t kRoom = 3000;  // tokens that each request may draw
  static constexpr int64_t kChunk = 8192;

  Scheduler scheduler_;
  std::deque<const Step*> in_flight_;
  StepResult result_;
  std::vector<Output> outputs_;
  Batch copy_;
  std::vector<uint8_t> other_memory_ = std::vector<uint8_t>(16 << 20);
};

/// Medians over the steps of a round, the least of all rounds: other programs on the machine only ever add time.
struct SchedulingTimes {
  double step_s = std::numeric_limits<double>::infinity();  ///< steps back to back
  double copy_s = std::numeric_limits<double>::infinity();
  double cold_step_s = std::numeric_limits<double>::infinity();  ///< with evict() between them

  void measure(SchedulingLoad& load, int steps, int rounds) {
    for (int round = 0; round < rounds; ++round) {
      step_s = std::min(step_s, median(steps, [&] { return load.step(); }));
      copy_s = std::min(copy_s, median(steps, [&] { return load.copy(); }));
    }
    for (int round = 0; round < rounds; ++round) {
      cold_step_s = std::min(cold_step_s, median(steps, [&] {
                               load.evict();
                               return load.step();
                             }));
    }
  }

 private:
  template <class Sample>
  static double median(int count, const Sample& sample) {
    std::vector<double> values(static_cast<size_t>(count));
    for (double& value : values) value = sample();
    std::ranges::nth_element(values, values.begin() + count / 2);
    return values[static_cast<size_t>(count / 2)];
  }
};

}  // namespace quaver::testing
