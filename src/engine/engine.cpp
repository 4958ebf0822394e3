// The engine's thread: takes commands, keeps two steps in flight, hands out outputs. All decisions are the scheduler's.
#include "quaver/engine.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <iterator>
#include <mutex>
#include <new>
#include <thread>
#include <unordered_set>
#include <variant>

#include "core/check.h"
#include "engine/request_checks.h"
#include "engine/runner.h"
#include "engine/scheduler.h"

namespace quaver {
namespace {

/// An error after which the same runner may run the next step.
bool runner_survives(const std::exception& error) {
  if (const auto* const known = dynamic_cast<const Error*>(&error)) {
    return known->kind() != ErrorKind::kCuda && known->kind() != ErrorKind::kInternal;
  }
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
}

std::string reason_of(const std::exception& error) {
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr ? "out of host memory" : error.what();
}

EngineOptions resolved(EngineOptions options, const Runner& runner) {
  const int64_t limit = runner.max_positions();
  check(options.max_model_len >= 0 && options.max_model_len <= limit, "max_model_len ", options.max_model_len,
        ": expected at most the model's max_position_embeddings ", limit);
  if (options.max_model_len == 0) options.max_model_len = limit;
  return options;
}

}  // namespace

std::string_view finish_reason_name(FinishReason reason) noexcept {
  switch (reason) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kAbort: return "abort";
    case FinishReason::kError: return "error";
  }
  return "unknown";
}

class Engine::Impl {
 public:
  Impl(std::unique_ptr<Runner> runner, const EngineOptions& options, std::vector<int32_t> eos_token_ids)
      : runner_(std::move(runner)),
        options_(resolved(options, *runner_)),
        scheduler_({.plan = runner_->cache_plan(),
                    .num_pages = runner_->num_pages(),
                    .options = options_,
                    .eos_token_ids = std::move(eos_token_ids),
                    .least_chunk = runner_->least_chunk()}),
        stats_(scheduler_.stats()),
        thread_([this] { run(); }) {}

  ~Impl() {
    {
      const std::scoped_lock lock(mutex_);
      stopping_ = true;
    }
    work_.notify_one();
    thread_.join();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  Impl(Impl&&) = delete;
  Impl& operator=(Impl&&) = delete;

  void add(Request request) {
    check_fits(request);
    {
      const std::scoped_lock lock(mutex_);
      check_as(ErrorKind::kInternal, failure_.empty(), "engine failed: ", failure_);
      check(live_.insert(request.id).second, "request id ", request.id, ": expected one that is not live");
      commands_.emplace_back(std::move(request));
      ++num_adds_;
    }
    work_.notify_one();
  }

  void abort(uint64_t request_id) {
    {
      const std::scoped_lock lock(mutex_);
      if (!live_.contains(request_id)) return;
      commands_.emplace_back(request_id);
    }
    work_.notify_one();
  }

  std::vector<Output> wait(double timeout_s) {
    constexpr double kLongest = 1e6;  // 12 days: far from what overflows a clock
    const std::chrono::duration<double> timeout(std::clamp(timeout_s, 0.0, kLongest));
    std::unique_lock lock(mutex_);
    has_outputs_.wait_for(lock, timeout, [this] { return !outputs_.empty(); });
    return std::exchange(outputs_, {});
  }

  EngineStats stats() const {
    const std::scoped_lock lock(mutex_);
    EngineStats stats = stats_;
    stats.num_waiting += num_adds_;
    return stats;
  }

  std::string failure() const {
    const std::scoped_lock lock(mutex_);
    return failure_;
  }

  int64_t max_model_len() const noexcept { return options_.max_model_len; }

  int64_t max_request_tokens() const {
    int64_t fits = 0;
    int64_t too_many = options_.max_model_len + 1;
    while (too_many - fits > 1) {
      const int64_t middle = fits + (too_many - fits) / 2;
      (pages_for(middle - 1) <= runner_->num_pages() ? fits : too_many) = middle;
    }
    return fits;
  }

 private:
  using Command = std::variant<Request, uint64_t>;  // add; abort

  struct Launched {
    std::string error;  // what launch() threw; the step did not start
  };

  void check_fits(const Request& request) const;
  /// Pages that a request needs which stores so many tokens.
  int64_t pages_for(int64_t stored) const {
    return runner_->cache_plan().blocks_for(stored, std::clamp<int64_t>(stored, 1, max_chunk(options_)));
  }

  // Everything below runs in the engine's thread.
  void run();
  bool take_commands();
  bool launch();
  void finish_oldest();
  void publish();
  void fail(const std::string& reason);

  std::unique_ptr<Runner> runner_;
  EngineOptions options_;
  Scheduler scheduler_;
  std::deque<Launched> launched_;
  std::vector<Output> step_outputs_;  // not yet published

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable work_;
  std::condition_variable has_outputs_;
  std::vector<Command> commands_;
  int64_t num_adds_ = 0;  // among them
  std::vector<Output> outputs_;
  std::unordered_set<uint64_t> live_;  // added, and the last output not published
  EngineStats stats_;
  std::string failure_;
  bool stopping_ = false;

  std::thread thread_;  // last: it uses all of the above
};

void Engine::Impl::check_fits(const Request& request) const {
  const auto prompt = std::ssize(request.prompt);
  check(prompt > 0, "prompt of 0 tokens: expected at least 1");
  for (const int32_t id : request.prompt) {
    check(id >= 0 && id < runner_->vocab_size(), "prompt token id ", id, ": expected 0 to ", runner_->vocab_size() - 1);
  }
  check_request_params(request.params, runner_->vocab_size());
  check(request.spans.empty() || runner_->takes_spans(), "spans ", request.spans.size(),
        ": expected none (images are not computed on a GPU in batch-invariant mode)");
  check_request_spans(request.spans, prompt, max_chunk(options_));
  const int64_t max_tokens = request.params.max_tokens;
  check(prompt <= options_.max_model_len && max_tokens <= options_.max_model_len - prompt, "prompt of ", prompt,
        " tokens + max_tokens ", max_tokens, ": expected at most max_model_len ", options_.max_model_len);
  const int64_t stored = std::max(prompt, prompt + max_tokens - 1);  // the last token drawn is never stored
  const int64_t pages = pages_for(stored);
  check(pages <= runner_->num_pages(), "prompt of ", prompt, " tokens + max_tokens ", max_tokens, " needs ", pages,
        " cache pages: expected at most the ", runner_->num_pages(), " of the pool");
}

void Engine::Impl::run() {
  try {
    while (take_commands()) {
      // A step is launched while its predecessor runs; results are awaited when two are in flight or nothing can go on
      // without one.
      const bool launched = launch();
      if (scheduler_.num_in_flight() > 0 && (!launched || scheduler_.num_in_flight() == Runner::kMaxInFlight)) {
        finish_oldest();
      }
      publish();
    }
  } catch (const std::exception& error) {
    fail(error.what());
  }
  // The runner may be in the middle of a step: it is let finish, whatever comes of it.
  for (; !launched_.empty(); launched_.pop_front()) {
    try {
      if (launched_.front().error.empty()) (void)runner_->wait();
    } catch (const std::exception&) {
      continue;
    }
  }
}

/// Waits for work when idle. False: the engine is to stop.
bool Engine::Impl::take_commands() {
  std::vector<Command> commands;
  {
    std::unique_lock lock(mutex_);
    work_.wait(lock, [this] { return stopping_ || !commands_.empty() || !scheduler_.idle(); });
    if (stopping_) return false;
    commands.swap(commands_);
    num_adds_ = 0;
    stats_.num_waiting += std::ranges::count_if(commands, [](const Command& c) { return c.index() == 0; });
  }
  for (Command& command : commands) {
    if (auto* const request = std::get_if<Request>(&command)) {
      scheduler_.add(std::move(*request));
    } else {
      scheduler_.abort(std::get<uint64_t>(command), step_outputs_);
    }
  }
  // What an abort freed is told now: the step that is launched next may have it, and would be waited for first.
  if (!commands.empty()) publish();
  return true;
}

bool Engine::Impl::launch() {
  // Behind a step that did not start nothing can run.
  if (!launched_.empty() && !launched_.back().error.empty()) return false;
  const Step* const step = scheduler_.schedule();
  if (step == nullptr) return false;
  launched_.emplace_back();
  try {
    runner_->launch(*step);
  } catch (const std::exception& error) {
    if (!runner_survives(error)) {
      launched_.pop_back();
      throw;
    }
    launched_.back().error = reason_of(error);
  }
  return true;
}

void Engine::Impl::finish_oldest() {
  const Launched oldest = std::move(launched_.front());
  launched_.pop_front();
  if (!oldest.error.empty()) {
    scheduler_.fail_step(oldest.error, step_outputs_);
    return;
  }
  const bool wanted = scheduler_.oldest_is_wanted();
  StepResult result;
  try {
    result = runner_->wait();
  } catch (const std::exception& error) {
    // Behind a failed step the runner's slots are not what this step expects, so only the device's own word counts.
    const auto* const known = dynamic_cast<const Error*>(&error);
    const bool survives = wanted ? runner_survives(error) : known == nullptr || known->kind() != ErrorKind::kCuda;
    if (!survives) throw;
    scheduler_.fail_step(reason_of(error), step_outputs_);
    return;
  }
  scheduler_.update(std::move(result), step_outputs_);
}

void Engine::Impl::publish() {
  const std::scoped_lock lock(mutex_);
  stats_ = scheduler_.stats();
  if (step_outputs_.empty()) return;
  for (const Output& output : step_outputs_) {
    if (output.finish_reason) live_.erase(output.request_id);
  }
  std::ranges::move(step_outputs_, std::back_inserter(outputs_));
  step_outputs_.clear();
  has_outputs_.notify_one();
}

/// Ends everything, requests that were never looked at included.
void Engine::Impl::fail(const std::string& reason) {
  scheduler_.fail_all(reason, step_outputs_);
  {
    const std::scoped_lock lock(mutex_);
    failure_ = reason;
    for (const Command& command : commands_) {
      if (const auto* const request = std::get_if<Request>(&command)) {
        step_outputs_.push_back({.request_id = request->id, .finish_reason = FinishReason::kError});
        step_outputs_.back().details = std::make_unique<Output::Details>(Output::Details{.error = reason});
      }
    }
    commands_.clear();
    num_adds_ = 0;
  }
  publish();
}

Engine::Engine(std::unique_ptr<Runner> runner, const EngineOptions& options, std::vector<int32_t> eos_token_ids)
    : impl_(std::make_unique<Impl>(std::move(runner), options, std::move(eos_token_ids))) {}

Engine::~Engine() = default;

void Engine::add(Request request) {
  impl_->add(std::move(request));
}

void Engine::abort(uint64_t request_id) {
  impl_->abort(request_id);
}

std::vector<Output> Engine::wait(double timeout_s) {
  return impl_->wait(timeout_s);
}

EngineStats Engine::stats() const {
  return impl_->stats();
}

std::string Engine::failure() const {
  return impl_->failure();
}

int64_t Engine::max_model_len() const noexcept {
  return impl_->max_model_len();
}

int64_t Engine::max_request_tokens() const {
  return impl_->max_request_tokens();
}

}  // namespace quaver
