// Requests that are ended from outside, whatever they are doing: steps are counted, not timed.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "served.h"

namespace quaver {
namespace {

using testing::plan_of;
using testing::prompt_of;
using testing::Served;

/// Waits for what another thread is about to do.
template <class Condition>
[[nodiscard]] bool eventually(const Condition& condition) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > limit) return false;
    std::this_thread::yield();
  }
  return true;
}

/// Holds steps until they may run.
struct Gate {
  std::atomic<int64_t> num_allowed{0};
  std::atomic<int64_t> num_launched{0};
  std::atomic<int64_t> num_begun{0};

  [[nodiscard]] testing::StubRunner::Options runner(int64_t num_pages) {
    return {.plan = plan_of({{}}),
            .num_pages = num_pages,
            .before_launch = [this](int64_t) { ++num_launched; },
            .before_execute =
                [this](int64_t step) {
                  ++num_begun;
                  (void)eventually([&] { return num_allowed > step; });
                }};
  }
};

struct Case {
  std::string name;
  int64_t prompt;
  int64_t max_tokens;
  int64_t held_pages;  // of each, when step kRunning was scheduled
};

constexpr int64_t kPages = 60;    // of 16 tokens
constexpr int64_t kJoining = 2;   // the first step of those that will be ended: all come while step 0 is held
constexpr int64_t kRunning = 4;   // the step that runs when they are ended
constexpr int64_t kSurvivor = 1;  // its page: few tokens for few steps

/// Two requests of each of `cases` are ended while step kRunning runs and the one behind it is launched. When step
/// kRunning is over, with the one behind it held, their pages are counted as free; the step that is built then has
/// them, for a newcomer who needs all.
void expect_pages_within_a_step(const std::vector<Case>& cases) {
  Gate gate;
  Served served(gate.runner(kPages), {.max_num_batched_tokens = 1024, .prefill_chunk_tokens = 16});
  served.add(1, prompt_of(3), {.max_tokens = 12, .ignore_eos = true});
  ASSERT_TRUE(eventually([&] { return gate.num_launched == kJoining; }));
  uint64_t last = 1;
  int64_t held = kSurvivor;
  for (const Case& each : cases) {
    for (int i = 0; i < 2; ++i) {
      ++last;
      served.add(last, prompt_of(each.prompt, last), {.max_tokens = each.max_tokens, .ignore_eos = true});
      held += each.held_pages;
    }
  }
  gate.num_allowed = kRunning;
  ASSERT_TRUE(eventually([&] { return gate.num_begun == kRunning + 1 && gate.num_launched == kRunning + 2; }));
  ASSERT_TRUE(eventually([&] { return served.engine.stats().steps_total == kRunning + 1; }));
  EXPECT_EQ(served.engine.stats().num_free_pages, kPages - held);
  for (uint64_t id = 2; id <= last; ++id) served.engine.abort(id);
  const uint64_t newcomer = last + 1;
  served.add(newcomer, prompt_of((kPages - 2) * 16, newcomer), {.max_tokens = 1});  // one page stays free for the other

  gate.num_allowed = kRunning + 1;
  EXPECT_TRUE(eventually([&] {
    const EngineStats stats = served.engine.stats();
    return stats.num_free_pages == kPages - kSurvivor && stats.num_running == 1 && stats.num_waiting == 1;
  }));
  for (uint64_t id = 2; id <= last; ++id) {
    EXPECT_TRUE(eventually([&] {
      served.take(0);
      return served.answers[id].finish_reason == FinishReason::kAbort;
    }));
  }
  EXPECT_TRUE(eventually([&] { return gate.num_launched == kRunning + 3; }));
  EXPECT_EQ(gate.num_begun, kRunning + 2);

  gate.num_allowed = kRunning + 2;
  EXPECT_TRUE(eventually([&] { return served.engine.stats().num_waiting == 0; }));
  EXPECT_EQ(served.engine.stats().steps_total, kRunning + 3);
  EXPECT_EQ(served.engine.stats().num_running, 2);

  gate.num_allowed = 1000;
  served.finish_all();
  for (const uint64_t id : {uint64_t{1}, newcomer}) served.expect_right(id);
  for (uint64_t id = 2; id <= last; ++id) {
    const std::vector<int32_t> whole =
        testing::expected_tokens(served.requests[id].prompt, served.requests[id].params, {testing::kEos});
    const std::vector<int32_t>& tokens = served.answers[id].tokens;
    ASSERT_LE(tokens.size(), whole.size());
    EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), whole.begin()));
  }
  EXPECT_EQ(served.engine.stats().num_free_pages, kPages);
}

// B35: decoding, amid a prompt, with its last step in flight, and waiting for pages; alone and together.
TEST(EngineAbort, FreesPagesWithinAStep) {
  constexpr int64_t kSteps = kRunning - kJoining + 1;  // up to the one that runs
  const std::vector<Case> cases{{"decode", 20, 100, 2},
                                {"prefill", 20 * 16, 100, kSteps},
                                {"last step in flight", 5, kSteps + 1, 1},
                                {"waiting", (kPages - 1) * 16, 1, 0}};
  for (const Case& each : cases) {
    SCOPED_TRACE(each.name);
    expect_pages_within_a_step({each});
  }
  SCOPED_TRACE("all together");
  expect_pages_within_a_step({cases[2], cases[0], {"prefill", 8 * 16, 100, kSteps}, cases[3]});
}

// B35: 10 rounds of requests ended from outside at any time. At most one step is launched after the engine was told,
// the one under construction then; what comes after is right.
TEST(EngineAbort, AtAnyTime) {
  std::atomic<int64_t> num_launched{0};
  Served served({.plan = plan_of({{}, {.window = 30}}),
                 .num_pages = 80,
                 .latency = std::chrono::microseconds(200),
                 .before_launch = [&](int64_t) { ++num_launched; }},
                {.max_num_seqs = 6, .prefill_chunk_tokens = 20});
  testing::Random random(3);
  uint64_t id = 0;
  for (int round = 0; round < 10; ++round) {
    std::vector<uint64_t> ids;
    for (int i = 0; i < 10; ++i) {
      ids.push_back(++id);
      served.add(id, prompt_of(1 + random.below(300), id), {.max_tokens = 300, .ignore_eos = true});
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random.below(6000)));
    served.take(0);
    for (const uint64_t each : ids) {
      served.engine.abort(each);
      served.engine.abort(each);
    }
    const int64_t launched = num_launched;
    ASSERT_TRUE(eventually([&] { return served.engine.stats().num_free_pages == 80; }));
    served.finish_all();
    EXPECT_LE(num_launched - launched, 1);
    for (const uint64_t each : ids) EXPECT_EQ(served.answers[each].finish_reason, FinishReason::kAbort);
    EXPECT_EQ(served.engine.stats().num_running + served.engine.stats().num_waiting, 0);
  }
  served.engine.abort(12345);
  served.add(++id, prompt_of(50), {.max_tokens = 20});
  served.finish_all();
  served.expect_right(id);
}

}  // namespace
}  // namespace quaver
