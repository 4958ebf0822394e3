// Steps on the CPU, on a thread of its own: the engine prepares step n+1 while step n runs.
#pragma once

#include <condition_variable>
#include <deque>
#include <filesystem>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/runner.h"
#include "engine/runner_options.h"
#include "engine/sampler.h"
#include "model/cpu_model.h"
#include "quaver/kv_cache.h"

namespace quaver {

class CpuRunner final : public Runner {
 public:
  /// Loads the Hugging Face folder `directory` and sizes the pool for `engine`. Throws Error(kInvalidArgument) naming
  /// the option, and what loading a model throws.
  [[nodiscard]] static std::unique_ptr<CpuRunner> load(const std::filesystem::path& directory,
                                                       const RunnerOptions& options, const EngineOptions& engine);

  CpuRunner(CpuModel model, const CachePlan& plan, int64_t num_pages, int num_threads = 0);
  /// Finishes the step that runs; drops one that waits.
  ~CpuRunner() override;
  CpuRunner(const CpuRunner&) = delete;
  CpuRunner& operator=(const CpuRunner&) = delete;
  CpuRunner(CpuRunner&&) = delete;
  CpuRunner& operator=(CpuRunner&&) = delete;

  void launch(const Step& step) override;
  [[nodiscard]] StepResult wait() override;

  [[nodiscard]] const CachePlan& cache_plan() const noexcept override { return cache_.plan(); }
  [[nodiscard]] int64_t num_pages() const noexcept override { return cache_.num_pages(); }
  [[nodiscard]] int64_t vocab_size() const noexcept override { return model_.config().vocab_size; }
  [[nodiscard]] int64_t max_positions() const noexcept override { return model_.config().max_positions; }
  [[nodiscard]] bool takes_spans() const noexcept override { return true; }
  [[nodiscard]] const CpuModel& model() const noexcept { return model_; }

 private:
  void work(const std::stop_token& stop, int num_threads);
  [[nodiscard]] StepResult run(const Step& step);
  /// Draws and reports for the rows [first, last) of step.batch.logit_rows, whose logits are in logits_.
  void read_logits(const Step& step, int64_t first, int64_t last, StepResult& result);

  CpuModel model_;
  HostKvCache cache_;
  Sampler sampler_;
  Batch batch_;                                 // of the current step, all tokens known
  std::vector<float> logits_;                   // [kLogitRows, vocab]
  std::vector<Sampler::Scratch> scratch_;       // by thread
  std::vector<int32_t> sample_of_row_;          // by logit row of the current step: index into step.samples, or -1
  std::vector<int32_t> prompt_logprob_of_row_;  // likewise

  std::deque<std::future<StepResult>> in_flight_;  // oldest first; of the thread that launches

  std::mutex mutex_;
  std::condition_variable_any work_came_;
  std::deque<std::packaged_task<StepResult()>> queue_;
  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace quaver
