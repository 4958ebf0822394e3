#include "engine/cpu_runner.h"

#include <omp.h>

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace quaver {
namespace {

// Logits of so many rows exist at once: 32 MB for Gemma's vocabulary.
constexpr int64_t kLogitRows = 32;

/// by_row[row] = index of the entry with that logit row, -1 where there is none.
template <class Entry>
void index_rows(const char* name, const std::vector<Entry>& entries, size_t num_rows, std::vector<int32_t>& by_row) {
  by_row.assign(num_rows, -1);
  int32_t index = 0;
  for (const Entry& entry : entries) {
    check(entry.logit_row >= 0 && std::cmp_less(entry.logit_row, num_rows), name, " of logit row ", entry.logit_row,
          ": expected one of ", num_rows);
    int32_t& place = by_row[static_cast<size_t>(entry.logit_row)];
    check(place < 0, name, " of logit row ", entry.logit_row, ": expected one at most");
    place = index++;
  }
}

}  // namespace

std::unique_ptr<CpuRunner> CpuRunner::load(const std::filesystem::path& directory, const RunnerOptions& options,
                                           const EngineOptions& engine) {
  ServingPlan plan = plan_serving(directory, options, engine);
  ModelWeights weights = options.dummy_seed ? dummy_weights(plan.config, *options.dummy_seed)
                                            : load_weights(directory, plan.config, options.kv_scales);
  plan.pool.available_bytes = available_host_bytes() - weights.bytes;
  const int64_t num_pages = pool_pages(plan.cache, plan.pool);
  CpuModel model(std::move(plan.config), std::move(weights),
                 {.batch_invariant = engine.batch_invariant,
                  .attention_precision = options.attention_precision,
                  .attention_kernel = options.attention_kernel});
  return std::make_unique<CpuRunner>(std::move(model), plan.cache, num_pages, options.num_threads);
}

CpuRunner::CpuRunner(CpuModel model, const CachePlan& plan, int64_t num_pages, int num_threads)
    : model_(std::move(model)), cache_(plan, num_pages) {
  model_.check_attention(plan);
  const int most = omp_get_num_procs();
  check(num_threads >= 0 && num_threads <= most, "num_threads ", num_threads, ": expected 1 to the ", most,
        " processors of this machine, or 0 for all");
  thread_ = std::jthread([this, num_threads](const std::stop_token& stop) { work(stop, num_threads); });
}

CpuRunner::~CpuRunner() = default;

void CpuRunner::launch(const Step& step) {
  check_as(ErrorKind::kInternal, in_flight_.size() < kMaxInFlight, "steps in flight ", in_flight_.size() + 1,
           ": expected at most ", kMaxInFlight);
  std::packaged_task<StepResult()> task([this, &step] { return run(step); });
  in_flight_.push_back(task.get_future());
  {
    const std::scoped_lock lock(mutex_);
    queue_.push_back(std::move(task));
  }
  work_came_.notify_one();
}

StepResult CpuRunner::wait() {
  check_as(ErrorKind::kInternal, !in_flight_.empty(), "steps in flight 0: expected one to wait for");
  std::future<StepResult> oldest = std::move(in_flight_.front());
  in_flight_.pop_front();
  return oldest.get();
}

void CpuRunner::work(const std::stop_token& stop, int num_threads) {
  if (num_threads > 0) omp_set_num_threads(num_threads);  // of the regions that this thread starts
  scratch_.resize(static_cast<size_t>(omp_get_max_threads()));
  for (;;) {
    std::packaged_task<StepResult()> task;
    {
      std::unique_lock lock(mutex_);
      if (!work_came_.wait(lock, stop, [this] { return !queue_.empty(); })) return;
      task = std::move(queue_.front());
      queue_.pop_front();
    }
    task();
  }
}

StepResult CpuRunner::run(const Step& step) {
  for (const PageCopy& copy : step.page_copies) cache_.copy_page(copy.from, copy.to);
  for (const Step::SlotStart& start : step.starts) sampler_.start(start);
  batch_ = step.batch;
  for (const Step::Feedback& feedback : step.feedback) {
    check(feedback.row >= 0 && feedback.row < batch_.num_tokens(), "feedback row ", feedback.row, ": expected 0 to ",
          batch_.num_tokens() - 1);
    batch_.token_ids[static_cast<size_t>(feedback.row)] = sampler_.last_token(feedback.slot);
  }
  index_rows("sample", step.samples, batch_.logit_rows.size(), sample_of_row_);
  index_rows("prompt logprob", step.prompt_logprobs, batch_.logit_rows.size(), prompt_logprob_of_row_);

  const std::span<const float> hidden = model_.forward(batch_, cache_);
  StepResult result;
  result.tokens.assign(step.samples.size(), -1);
  result.logprobs.resize(step.samples.size());
  result.prompt_logprobs.resize(step.prompt_logprobs.size());
  const int64_t width = model_.config().hidden_size;
  const int64_t num_rows = std::ssize(batch_.logit_rows);
  const auto needed = static_cast<size_t>(std::min(kLogitRows, num_rows) * vocab_size());
  if (logits_.size() < needed) logits_.resize(needed);
  for (int64_t first = 0; first < num_rows; first += kLogitRows) {
    const int64_t last = std::min(num_rows, first + kLogitRows);
    model_.logits(hidden.subspan(static_cast<size_t>(first * width), static_cast<size_t>((last - first) * width)),
                  logits_.data());
    read_logits(step, first, last, result);
  }
  return result;
}

void CpuRunner::read_logits(const Step& step, int64_t first, int64_t last, StepResult& result) {
  const auto vocab = static_cast<size_t>(vocab_size());
  std::vector<std::optional<StepResult::Failure>> failures(static_cast<size_t>(last - first));
#pragma omp parallel for schedule(dynamic) if (last - first > 1)
  for (int64_t row = first; row < last; ++row) {
    const auto local = static_cast<size_t>(row - first);
    const std::span<float> logits(logits_.data() + local * vocab, vocab);
    int32_t slot = -1;
    try {
      if (const int32_t index = prompt_logprob_of_row_[static_cast<size_t>(row)]; index >= 0) {
        const Step::PromptLogprob& wanted = step.prompt_logprobs[static_cast<size_t>(index)];
        slot = wanted.slot;
        result.prompt_logprobs[static_cast<size_t>(index)] =
            token_logprobs(logits, wanted.target, sampler_.params(slot).prompt_logprobs);
      }
      if (const int32_t index = sample_of_row_[static_cast<size_t>(row)]; index >= 0) {
        slot = step.samples[static_cast<size_t>(index)].slot;
        Sampler::Drawn drawn = sampler_.draw(slot, logits, scratch_[static_cast<size_t>(omp_get_thread_num())]);
        result.tokens[static_cast<size_t>(index)] = drawn.token;
        result.logprobs[static_cast<size_t>(index)] = std::move(drawn.logprobs);
      }
    } catch (const Error& error) {
      failures[local] = {.slot = slot, .reason = error.what()};
    }
  }
  for (std::optional<StepResult::Failure>& failure : failures) {
    if (failure) result.failures.push_back(std::move(*failure));
  }
}

}  // namespace quaver
