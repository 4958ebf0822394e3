// Runners that fail: who is told, and whether the engine goes on.
#include <gtest/gtest.h>

#include <new>

#include "served.h"

namespace quaver {
namespace {

using testing::expect_error;
using testing::plan_of;
using testing::prompt_of;
using testing::Served;
using testing::StubRunner;

enum class Where : uint8_t { kLaunch, kExecute };

template <class Exception>
StubRunner::Options failing_at(Where where, int64_t failing, const Exception& exception) {
  StubRunner::Options options{.plan = plan_of({{}}), .num_pages = 60};
  const auto hook = [failing, exception](int64_t step) {
    if (step == failing) throw exception;
  };
  (where == Where::kLaunch ? options.before_launch : options.before_execute) = hook;
  return options;
}

// Out of memory in a step: its requests are told, the others and whoever comes later are served.
TEST(EngineFailure, TheEngineSurvivesAStep) {
  for (const Where where : {Where::kLaunch, Where::kExecute}) {
    for (const int64_t failing : {0, 1, 2, 5, 9}) {
      Served served(failing_at(where, failing, Error(ErrorKind::kOutOfMemory, "no room for logits")),
                    {.max_num_batched_tokens = 20});
      for (uint64_t id = 1; id <= 4; ++id) served.add(id, prompt_of(30, id), {.max_tokens = 8, .ignore_eos = true});
      served.finish_all();
      int failed = 0;
      for (uint64_t id = 1; id <= 4; ++id) {
        if (served.answers[id].finish_reason == FinishReason::kError) {
          EXPECT_EQ(served.answers[id].error, "no room for logits");
          ++failed;
        } else {
          served.expect_right(id);
        }
      }
      EXPECT_GT(failed, 0);
      EXPECT_EQ(served.engine.failure(), "");
      EXPECT_EQ(served.engine.stats().failed_steps_total, 1);
      EXPECT_EQ(served.engine.stats().num_free_pages, 60);
      served.add(9, prompt_of(30, 1), {.max_tokens = 8, .ignore_eos = true});
      served.finish_all();
      served.expect_right(9);
    }
  }
}

TEST(EngineFailure, HostMemoryIsOneOfThoseErrors) {
  for (const Where where : {Where::kLaunch, Where::kExecute}) {
    Served served(failing_at(where, 1, std::bad_alloc()));
    served.add(1, prompt_of(5), {.max_tokens = 8, .ignore_eos = true});
    served.finish_all();
    EXPECT_EQ(served.answers[1].error, "out of host memory");
    EXPECT_EQ(served.engine.failure(), "");
  }
}

// After these the runner cannot go on: everyone is told, running or waiting, and add() says why.
template <class Exception>
void expect_the_end(const Exception& exception) {
  for (const Where where : {Where::kLaunch, Where::kExecute}) {
    for (const int64_t failing : {0, 1, 4}) {
      Served served(failing_at(where, failing, exception), {.max_num_seqs = 2});
      try {
        for (uint64_t id = 1; id <= 4; ++id) served.add(id, prompt_of(30, id), {.max_tokens = 8, .ignore_eos = true});
      } catch (const Error&) {  // it failed before all were in
        std::erase_if(served.answers,
                      [&](const auto& entry) { return entry.first == served.requests.rbegin()->first; });
      }
      served.finish_all();
      for (const auto& [id, answer] : served.answers) {
        EXPECT_EQ(answer.finish_reason, FinishReason::kError);
        EXPECT_EQ(answer.error, exception.what());
      }
      EXPECT_EQ(served.engine.failure(), exception.what());
      expect_error([&] { served.engine.add({.id = 77, .prompt = {1}}); }, ErrorKind::kInternal,
                   {"engine failed", exception.what()});
      EXPECT_EQ(served.engine.stats().num_running + served.engine.stats().num_waiting, 0);
      EXPECT_TRUE(served.engine.wait(0).empty());
      served.engine.abort(1);
    }
  }
}

TEST(EngineFailure, CudaAndInternalErrorsAreTheEnd) {
  expect_the_end(Error(ErrorKind::kCuda, "an illegal memory access"));
  expect_the_end(Error(ErrorKind::kInternal, "a broken invariant"));
  expect_the_end(std::logic_error("something unheard of"));
}

// The step behind a failed one fails too, in a way of its own: nobody is told twice.
TEST(EngineFailure, TwoStepsInARow) {
  StubRunner::Options options{.plan = plan_of({{}}), .num_pages = 60};
  options.before_execute = [](int64_t step) {
    if (step == 2) throw Error(ErrorKind::kOutOfMemory, "first");
    if (step == 3) throw Error(ErrorKind::kUnsupported, "second");
  };
  Served served(std::move(options), {.max_num_batched_tokens = 10});
  for (uint64_t id = 1; id <= 3; ++id) served.add(id, prompt_of(10, id), {.max_tokens = 20, .ignore_eos = true});
  served.finish_all();
  for (uint64_t id = 1; id <= 3; ++id) {
    if (served.answers[id].finish_reason == FinishReason::kError) {
      EXPECT_EQ(served.answers[id].error, "first");
    } else {
      served.expect_right(id);
    }
  }
  EXPECT_EQ(served.engine.failure(), "");
}

}  // namespace
}  // namespace quaver
