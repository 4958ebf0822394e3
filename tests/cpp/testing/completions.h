// Requests of all kinds, and what an engine makes of them: for tests that compare them bit for bit.
#pragma once

#include <algorithm>
#include <chrono>
#include <future>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/runner.h"
#include "quaver/engine.h"
#include "testing/tiny_generator.h"

namespace quaver::testing {

struct Completion {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;         // of the tokens and the best three of each step
  std::vector<float> prompt_logprobs;  // likewise
  std::optional<FinishReason> finish_reason;
  int64_t cached_tokens = 0;
};

inline void take_logprobs(const TokenLogprobs& from, std::vector<float>& to) {
  to.push_back(from.logprob);
  for (const auto& [id, logprob] : from.top) to.push_back(logprob);
}

/// Of requests that have been added.
inline std::map<uint64_t, Completion> take_completions(Engine& engine, const std::vector<Request>& requests) {
  std::map<uint64_t, Completion> completions;
  for (const Request& request : requests) completions[request.id] = {};
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  size_t num_ended = 0;
  while (num_ended < requests.size() && std::chrono::steady_clock::now() < deadline) {
    for (const Output& output : engine.wait(0.1)) {
      Completion& completion = completions[output.request_id];
      EXPECT_FALSE(completion.finish_reason) << "output after the last one of request " << output.request_id;
      if (output.token) completion.tokens.push_back(*output.token);
      completion.finish_reason = output.finish_reason;
      completion.cached_tokens = std::max(completion.cached_tokens, output.cached_tokens);
      if (output.details) {
        if (output.details->logprobs) take_logprobs(*output.details->logprobs, completion.logprobs);
        for (const TokenLogprobs& each : output.details->prompt_logprobs)
          take_logprobs(each, completion.prompt_logprobs);
        EXPECT_EQ(output.details->error, "");
      }
      if (output.finish_reason) ++num_ended;
    }
  }
  EXPECT_EQ(num_ended, requests.size());
  return completions;
}

/// Completions by id, of requests that run at the same time.
inline std::map<uint64_t, Completion> complete(Engine& engine, const std::vector<Request>& requests) {
  for (const Request& request : requests) engine.add(request);
  return take_completions(engine, requests);
}

/// A runner whose first step tells that it is there and waits for `go`.
class HeldRunner final : public Runner {
 public:
  HeldRunner(std::unique_ptr<Runner> runner, std::promise<void> held, std::future<void> go)
      : runner_(std::move(runner)), held_(std::move(held)), go_(std::move(go)) {}
  void launch(const Step& step) override {
    if (!std::exchange(started_, true)) {
      held_.set_value();
      go_.wait();
    }
    runner_->launch(step);
  }
  [[nodiscard]] StepResult wait() override { return runner_->wait(); }
  [[nodiscard]] const CachePlan& cache_plan() const noexcept override { return runner_->cache_plan(); }
  [[nodiscard]] int64_t num_pages() const noexcept override { return runner_->num_pages(); }
  [[nodiscard]] int64_t vocab_size() const noexcept override { return runner_->vocab_size(); }
  [[nodiscard]] int64_t max_positions() const noexcept override { return runner_->max_positions(); }
  [[nodiscard]] bool takes_spans() const noexcept override { return runner_->takes_spans(); }
  [[nodiscard]] int64_t least_chunk() const noexcept override { return runner_->least_chunk(); }

 private:
  std::unique_ptr<Runner> runner_;
  bool started_ = false;
  std::promise<void> held_;
  std::future<void> go_;
};

struct CompletedAtOnce {
  std::map<uint64_t, Completion> completions;
  EngineStats stats;  ///< at the end
};

/// complete() on an engine of its own and with the same steps every time: the step of a request of one token is held
/// until all others wait behind it.
inline CompletedAtOnce complete_at_once(std::unique_ptr<Runner> runner, const EngineOptions& options,
                                        std::vector<int32_t> eos_token_ids, std::vector<Request> requests) {
  std::promise<void> held;
  std::promise<void> begin;
  const std::future<void> is_held = held.get_future();
  Engine engine(std::make_unique<HeldRunner>(std::move(runner), std::move(held), begin.get_future()), options,
                std::move(eos_token_ids));
  std::promise<void> go = std::move(begin);  // gone before the engine, which else would wait for ever
  requests.insert(requests.begin(), {.id = std::numeric_limits<uint64_t>::max(), .prompt = {3}});
  requests.front().params.max_tokens = 1;
  engine.add(requests.front());
  is_held.wait();
  for (const Request& request : std::span(requests).subspan(1)) engine.add(request);
  go.set_value();
  CompletedAtOnce result{.completions = take_completions(engine, requests), .stats = {}};
  result.stats = engine.stats();
  return result;
}

inline void expect_equal(const Completion& got, const Completion& want, uint64_t id) {
  EXPECT_EQ(got.tokens, want.tokens) << "request " << id;
  EXPECT_EQ(got.logprobs, want.logprobs) << "request " << id;
  EXPECT_EQ(got.prompt_logprobs, want.prompt_logprobs) << "request " << id;
  EXPECT_EQ(got.finish_reason, want.finish_reason) << "request " << id;
}

/// Prompts of 1 to 60 tokens, a third of them with 40 others in front that they share; greedy, sampled and penalised;
/// some with prompt log-probabilities. `images`: in some of the prompts, of up to 5 tokens; of the shared beginning
/// some have the same ones, others are text.
inline std::vector<Request> requests_of_all_kinds(int count, int64_t max_tokens, bool images = false) {
  const std::vector<int32_t> shared = random_tokens(40, 99);
  std::vector<Request> requests;
  for (int i = 0; i < count; ++i) {
    Request request{.id = static_cast<uint64_t>(i), .prompt = random_tokens(static_cast<size_t>(1 + i * 17 % 60), 7)};
    if (i % 3 == 0) request.prompt.insert(request.prompt.begin(), shared.begin(), shared.end());
    request.params.sampling.seed = static_cast<uint64_t>(i);
    if (i % 2 == 1) request.params.sampling.temperature = 1.0;
    if (i % 4 == 1) request.params.sampling.top_p = 0.9;
    if (i % 5 == 1) request.params.sampling.repetition_penalty = 1.3;
    if (i % 5 == 2) request.params.sampling.frequency_penalty = 0.5;
    request.params.max_tokens = max_tokens;
    request.params.ignore_eos = i % 7 != 0;
    request.params.logprobs = 3;
    if (i % 8 == 0) request.params.prompt_logprobs = 3;
    const bool with_images = images && i % 4 >= 2;
    for (int64_t first = 2; with_images && first + 5 <= std::ssize(request.prompt); first += 6 + i % 3) {
      request.spans.push_back({.first = first, .last = first + 2 + first % 4});
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

}  // namespace quaver::testing
