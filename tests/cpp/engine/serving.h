// Scheduler and stub model without threads: every step is looked at, and when it runs is up to the test.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/scheduler.h"
#include "testing/cache_plans.h"
#include "testing/random.h"
#include "testing/stub_runner.h"

namespace quaver::testing {

inline constexpr int32_t kEos = 7;

inline std::vector<int32_t> prompt_of(int64_t length, uint64_t seed = 1) {
  Random random(seed);
  std::vector<int32_t> prompt(static_cast<size_t>(length));
  for (int32_t& token : prompt) token = static_cast<int32_t>(random.below(kStubVocab));
  return prompt;
}

/// What came out for one request, joined.
struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  std::vector<float> prompt_logprobs;
  std::optional<FinishReason> finish_reason;
  std::string error;
  int64_t cached_tokens = 0;

  void take(const Output& output) {
    ASSERT_FALSE(finish_reason) << "output after the last one of request " << output.request_id;
    if (output.token) tokens.push_back(*output.token);
    finish_reason = output.finish_reason;
    cached_tokens = output.cached_tokens;
    if (output.details == nullptr) return;
    if (output.details->logprobs) logprobs.push_back(output.details->logprobs->logprob);
    for (const TokenLogprobs& value : output.details->prompt_logprobs) prompt_logprobs.push_back(value.logprob);
    error = output.details->error;
  }
};

/// The answer of a request that ended by itself is the one it gets alone, with all it asked for.
inline void expect_solo_answer(const Request& request, const Answer& answer) {
  const RequestParams& params = request.params;
  const std::vector<int32_t> expected = expected_tokens(request.prompt, params, {kEos});
  EXPECT_EQ(answer.tokens, expected) << "request " << request.id;
  const bool stopped = !expected.empty() && ((!params.ignore_eos && expected.back() == kEos) ||
                                             std::ranges::count(params.stop_token_ids, expected.back()) > 0);
  EXPECT_EQ(answer.finish_reason, stopped ? FinishReason::kStop : FinishReason::kLength) << "request " << request.id;
  EXPECT_EQ(answer.logprobs.size(), params.logprobs >= 0 ? expected.size() : 0U) << "request " << request.id;
  const std::vector<float> prompt_logprobs =
      params.prompt_logprobs >= 0 ? expected_prompt_logprobs(request.prompt) : std::vector<float>{};
  EXPECT_EQ(answer.prompt_logprobs, prompt_logprobs) << "request " << request.id;
}

class Serving {
 public:
  struct Setup {
    CachePlan plan = plan_of({{}});
    int64_t num_pages = 0;
    EngineOptions options{};
    PrefixIndex::HashFunction hash = hash_token_block;
    int64_t least_chunk = 1;
    int ahead = 1;  ///< steps scheduled before the result of the one that runs is in: 1 as in Engine, or 0
  };

  explicit Serving(const Setup& setup)
      : scheduler({.plan = setup.plan,
                   .num_pages = setup.num_pages,
                   .options = setup.options,
                   .eos_token_ids = {kEos},
                   .least_chunk = setup.least_chunk,
                   .prefix_hash = setup.hash}),
        setup_(setup),
        model_(setup.plan, setup.num_pages) {}

  void add(uint64_t id, std::vector<int32_t> prompt, const RequestParams& params, const std::string& salt = {},
           const std::vector<TokenSpan>& spans = {}) {
    requests_[id] = {.id = id, .prompt = std::move(prompt), .params = params, .spans = spans, .cache_salt = salt};
    note_spans(spans, requests_[id].params);
    answers.erase(id);
    scheduler.add(requests_[id]);
  }
  void abort(uint64_t id) {
    std::vector<Output> outputs;
    scheduler.abort(id, outputs);
    take(outputs);
  }

  /// What Engine's thread does in a round. The step that was scheduled, or nullptr.
  const Step* step() {
    const Step* const step = scheduler.schedule();
    if (step != nullptr) {
      in_flight_.push_back(step);
      if (on_step) on_step(*step);
    }
    if (!in_flight_.empty() && (step == nullptr || std::ssize(in_flight_) > setup_.ahead)) finish_oldest();
    return step;
  }
  void finish_oldest() {
    const Step& oldest = *in_flight_.front();  // as the scheduler left it, although later steps were built since
    in_flight_.pop_front();
    std::vector<Output> outputs;
    StepResult result = model_.execute(oldest);
    if (spoil) spoil(oldest, result);
    scheduler.update(std::move(result), outputs);
    take(outputs);
  }
  void fail_oldest(const std::string& reason) {
    in_flight_.pop_front();
    std::vector<Output> outputs;
    scheduler.fail_step(reason, outputs);
    take(outputs);
  }
  /// Until all is done; every page must be free again then.
  void run(int64_t most_steps = 100000) {
    int64_t rounds = 0;
    for (; !scheduler.idle(); ++rounds) {
      ASSERT_LT(rounds, most_steps);
      step();
    }
    EXPECT_EQ(scheduler.stats().num_free_pages, setup_.num_pages);
    EXPECT_EQ(scheduler.stats().num_running + scheduler.stats().num_waiting, 0);
  }

  void expect_right(uint64_t id) { expect_solo_answer(requests_.at(id), answers[id]); }
  [[nodiscard]] int64_t free_pages() const { return scheduler.stats().num_free_pages; }

  Scheduler scheduler;
  std::map<uint64_t, Answer> answers;
  std::function<void(const Step&)> on_step;             ///< sees every step when it is scheduled
  std::function<void(const Step&, StepResult&)> spoil;  ///< changes results

 private:
  void take(const std::vector<Output>& outputs) {
    for (const Output& output : outputs) answers[output.request_id].take(output);
  }

  Setup setup_;
  StubModel model_;
  std::deque<const Step*> in_flight_;
  std::map<uint64_t, Request> requests_;
};

/// The number of tokens of each row of a step.
inline std::vector<int32_t> row_sizes(const Step& step) {
  std::vector<int32_t> sizes;
  for (size_t row = 0; row + 1 < step.batch.query_start.size(); ++row) {
    sizes.push_back(step.batch.query_start[row + 1] - step.batch.query_start[row]);
  }
  return sizes;
}

}  // namespace quaver::testing
