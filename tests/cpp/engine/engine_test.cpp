// The engine's thread over a stub runner: answers, aborts, limits, failures.
#include "quaver/engine.h"

#include <gtest/gtest.h>

#include <map>

#include "testing/cache_plans.h"
#include "testing/expect_error.h"
#include "testing/random.h"
#include "testing/stub_runner.h"

namespace quaver {
namespace {

using testing::expect_error;
using testing::expected_tokens;
using testing::plan_of;
using testing::StubRunner;

constexpr int32_t kEos = 7;

std::vector<int32_t> prompt_of(int64_t length, uint64_t seed = 1) {
  testing::Random random(seed);
  std::vector<int32_t> prompt(static_cast<size_t>(length));
  for (int32_t& token : prompt) token = static_cast<int32_t>(random.below(testing::kStubVocab));
  return prompt;
}

/// An engine, and what came out of it by request.
struct Served {
  struct Answer {
    std::vector<int32_t> tokens;
    std::optional<FinishReason> finish_reason;
    std::string error;
    std::vector<TokenLogprobs> prompt_logprobs;
    int64_t cached_tokens = 0;
  };

  explicit Served(StubRunner::Options runner, const EngineOptions& options = {})
      : engine(std::make_unique<StubRunner>(std::move(runner)), options, {kEos}) {}

  /// Takes outputs until every request of `ids` has ended.
  void finish(const std::vector<uint64_t>& ids) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    const auto open = [&] { return std::ranges::any_of(ids, [&](uint64_t id) { return !answers[id].finish_reason; }); };
    while (open()) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
      take(0.1);
    }
  }

  void take(double timeout_s) {
    for (Output& output : engine.wait(timeout_s)) {
      Answer& answer = answers[output.request_id];
      ASSERT_FALSE(answer.finish_reason) << "output after the last one of request " << output.request_id;
      if (output.token) answer.tokens.push_back(*output.token);
      std::ranges::move(output.prompt_logprobs, std::back_inserter(answer.prompt_logprobs));
      answer.finish_reason = output.finish_reason;
      answer.error = output.error;
      answer.cached_tokens = output.cached_tokens;
    }
  }

  std::map<uint64_t, Answer> answers;
  Engine engine;
};

TEST(Engine, AnswersAreThoseOfEachRequestAlone) {
  Served served({.plan = plan_of({{}, {.window = 24}}), .num_pages = 200}, {.max_num_batched_tokens = 64});
  std::vector<uint64_t> ids;
  std::map<uint64_t, std::vector<int32_t>> expected;
  for (uint64_t id = 1; id <= 20; ++id) {
    Request request{.id = id, .prompt = prompt_of(static_cast<int64_t>(id * 7 % 90 + 1), id)};
    request.params = {.sampling = {.temperature = id % 2 == 0 ? 1.0 : 0.0, .seed = id}, .max_tokens = 30};
    expected[id] = expected_tokens(request.prompt, request.params, {kEos});
    ids.push_back(id);
    served.engine.add(std::move(request));
  }
  served.finish(ids);
  for (const uint64_t id : ids) {
    EXPECT_EQ(served.answers[id].tokens, expected[id]) << id;
    const bool stopped = expected[id].back() == kEos;
    EXPECT_EQ(served.answers[id].finish_reason, stopped ? FinishReason::kStop : FinishReason::kLength);
  }
  const EngineStats stats = served.engine.stats();
  EXPECT_EQ(stats.num_running + stats.num_waiting, 0);
  EXPECT_EQ(stats.num_free_pages, 200);
}

}  // namespace
}  // namespace quaver
