// profile_steps() of step_profile.h, in builds with CUDA.
#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>

#include "core/check.h"
#include "engine/device_runner.h"
#include "engine/step_profile.h"
#include "kv_cache/manager.h"
#include "model/batch_builder.h"

namespace quaver {
namespace {

/// Spreads token ids over the vocabulary.
int32_t token_at(int64_t index, int64_t vocab_size) {
  constexpr int64_t kStride = 2654435761;
  return static_cast<int32_t>(index * kStride % vocab_size);
}

std::vector<int32_t> tokens(int64_t first, int64_t count, int64_t vocab_size) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) id = token_at(first++, vocab_size);
  return ids;
}

/// Steps of the profile, by hand as the scheduler would make them.
class ProfiledModel {
 public:
  explicit ProfiledModel(std::unique_ptr<DeviceRunner> runner)
      : runner_(std::move(runner)), manager_(runner_->cache_plan(), runner_->num_pages(), false) {}

  /// The next `count` tokens of one sequence, with a token drawn after the last.
  void add(Step& step, SequencePages& pages, int32_t slot, int64_t count) {
    for (const PageCopy& copy : manager_.append(pages, count)) step.page_copies.push_back(copy);
    const std::vector<int32_t> ids = tokens(pages.num_tokens + slot, count, runner_->vocab_size());
    const auto last = static_cast<int32_t>(count - 1);
    if (step.row_slots.empty()) {  // a builder knows one batch
      builder_ = {};
      builder_.begin(manager_, step.batch);
    }
    builder_.add(manager_, {.pages = pages, .tokens = ids, .logit_rows = {&last, 1}}, step.batch);
    step.samples.push_back({.logit_row = static_cast<int32_t>(step.samples.size()), .slot = slot});
    step.row_slots.push_back(slot);
  }
  static void start(Step& step, int32_t slot) {
    Step::SlotStart start;
    start.slot = slot;
    start.tokens = {0};
    start.prompt_len = 1;
    step.starts.push_back(std::move(start));
  }
  void run(const Step& step) {
    runner_->launch(step);
    static_cast<void>(runner_->wait());
  }

  [[nodiscard]] StepProfile profile(const char* name, const Step& step, double idle_seconds) {
    StepProfile profile{.name = name, .load = load_of(step.batch)};
    std::this_thread::sleep_for(std::chrono::duration<double>(idle_seconds));
    std::vector<double> seconds;
    for (int i = 0; i < kProfileRuns; ++i) seconds.push_back(timed(step));
    profile.after_idle_seconds = seconds.front();
    std::ranges::nth_element(seconds, seconds.begin() + kProfileRuns / 2);
    profile.step_seconds = seconds[kProfileRuns / 2];
    profile.parts = parts(step, profile.load);
    return profile;
  }
  [[nodiscard]] KvManager& manager() { return manager_; }
  [[nodiscard]] const CachePlan& plan() const { return runner_->cache_plan(); }

 private:
  [[nodiscard]] static StepLoad load_of(const Batch& batch) {
    StepLoad load{.sequences = {},
                  .num_logit_rows = std::ssize(batch.logit_rows),
                  .last_tokens_only = wants_last_tokens_only(batch)};
    for (size_t b = 0; b < batch.seq_lens.size(); ++b) {
      load.sequences.push_back(
          {.query_len = batch.query_start[b + 1] - batch.query_start[b], .kv_len = batch.seq_lens[b]});
    }
    return load;
  }
  [[nodiscard]] double timed(const Step& step) {
    const CudaEvent begin = make_event();
    const CudaEvent end = make_event();
    check_cuda(cudaEventRecord(begin.get(), runner_->stream()), "cudaEventRecord");
    runner_->launch(step);
    check_cuda(cudaEventRecord(end.get(), runner_->stream()), "cudaEventRecord");
    static_cast<void>(runner_->wait());
    return seconds_between(begin, end);
  }
  [[nodiscard]] static double seconds_between(const CudaEvent& begin, const CudaEvent& end) {
    float milliseconds = 0;
    check_cuda(cudaEventSynchronize(end.get()), "cudaEventSynchronize");
    check_cuda(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()), "cudaEventElapsedTime");
    return 1e-3 * static_cast<double>(milliseconds);
  }
  /// The step in front keeps the GPU busy until the host has queued the observed one: no gap of it is the host's.
  [[nodiscard]] std::vector<PartProfile> parts(const Step& step, const StepLoad& load) {
    std::vector<std::pair<StepPart, CudaEvent>> begins;
    CudaEvent end = make_event();
    const auto record = [this](const CudaEvent& event) {
      check_cuda(cudaEventRecord(event.get(), runner_->stream()), "cudaEventRecord");
    };
    runner_->launch(step);
    runner_->launch_observed(step, [&](StepPart part) {
      begins.emplace_back(part, make_event());
      record(begins.back().second);
    });
    record(end);
    static_cast<void>(runner_->wait());
    static_cast<void>(runner_->wait());
    PartMarks marks;
    for (const auto& [part, event] : begins) marks.emplace_back(part, seconds_between(begins.front().second, event));
    const DeviceModel& model = runner_->model();
    return add_up(marks, seconds_between(begins.front().second, end),
                  step_costs(model.config(), model.facts(), plan(), load));
  }

  std::unique_ptr<DeviceRunner> runner_;
  KvManager manager_;
  BatchBuilder builder_;
};

/// What `from` holds is copied to the same places of `to`.
void copy_visible_pages(const SequencePages& from, const SequencePages& to, Step& step) {
  for (size_t g = 0; g < from.tables.size(); ++g) {
    for (size_t i = 0; i < to.tables[g].size(); ++i) {
      const PageCopy copy{.from = from.tables[g].at(i), .to = to.tables[g][i]};
      if (copy.from >= 0 && copy.to >= 0) step.page_copies.push_back(copy);
    }
  }
}

}  // namespace

std::vector<StepProfile> profile_steps(int gpu, const std::filesystem::path& directory, const RunnerOptions& options,
                                       const ProfileLoad& load) {
  check(load.decode_sequences > 0 && load.context > 1 && load.prefill_tokens > 0, "profile of ", load.decode_sequences,
        " sequences of ", load.context, " tokens and a prompt of ", load.prefill_tokens,
        ": expected at least 1, 2 and 1");
  const EngineOptions engine{.max_model_len = std::max(load.context, load.prefill_tokens),
                             .max_num_seqs = load.decode_sequences,
                             .max_num_batched_tokens = load.prefill_tokens,
                             .batch_invariant = load.batch_invariant};
  ProfiledModel model(DeviceRunner::load(directory, options, engine, gpu));
  std::vector<StepProfile> profiles;

  SequencePages prompt;
  Step prefill;
  ProfiledModel::start(prefill, 0);
  model.add(prefill, prompt, 0, load.prefill_tokens);
  model.run(prefill);  // kernels are loaded
  prefill.starts.clear();
  profiles.push_back(model.profile("prefill", prefill, load.idle_seconds));
  model.manager().release(prompt);

  std::vector<SequencePages> sequences(static_cast<size_t>(load.decode_sequences));
  for (int64_t left = load.context - 1; left > 0;) {  // the first one is really computed
    Step chunk;
    const int64_t count = std::min(left, load.prefill_tokens);
    model.add(chunk, sequences.front(), 0, count);
    model.run(chunk);
    left -= count;
  }
  Step decode;
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (i > 0) static_cast<void>(model.manager().append(sequences[i], load.context - 1));
    ProfiledModel::start(decode, static_cast<int32_t>(i));
    model.add(decode, sequences[i], static_cast<int32_t>(i), 1);
    if (i > 0) copy_visible_pages(sequences.front(), sequences[i], decode);
  }
  model.run(decode);
  decode.starts.clear();
  decode.page_copies.clear();
  model.run(decode);  // recorded
  profiles.push_back(model.profile("decode", decode, load.idle_seconds));
  return profiles;
}

}  // namespace quaver
