// Steps that fail, and requests that cannot go on while others can.
#include <gtest/gtest.h>

#include "serving.h"

namespace quaver {
namespace {

using testing::prompt_of;
using testing::Serving;

const RequestParams kParams{.max_tokens = 20, .ignore_eos = true, .prompt_logprobs = 0};

// Fails step `failing` of a run in which requests come in while others decode. Whoever was in it ends with the reason;
// everyone else, those in the step behind it included, gets the answer it gets alone.
TEST(SchedulerFailure, OnlyTheRequestsOfTheStepEnd) {
  for (int failing = 0; failing < 30; ++failing) {
    Serving serving(
        {.plan = testing::plan_of({{}, {.window = 20}}), .num_pages = 60, .options = {.max_num_batched_tokens = 30}});
    uint64_t id = 0;
    for (int round = 0; round < failing; ++round) {
      if (round % 3 == 0) {
        ++id;
        serving.add(id, prompt_of(10 + round, id), kParams);
      }
      serving.step();
    }
    ++id;
    serving.add(id, prompt_of(45, id), kParams);
    ++id;
    serving.add(id, prompt_of(16, id), {.max_tokens = 1});
    serving.step();
    const int64_t failed_before = serving.scheduler.stats().failed_steps_total;
    serving.fail_oldest("out of something");
    EXPECT_EQ(serving.scheduler.stats().failed_steps_total, failed_before + 1);
    serving.run();
    int64_t ended = 0;
    for (uint64_t i = 1; i <= id; ++i) {
      if (serving.answers[i].finish_reason == FinishReason::kError) {
        EXPECT_EQ(serving.answers[i].error, "out of something");
        ++ended;
      } else {
        serving.expect_right(i);
      }
    }
    EXPECT_GT(ended, 0) << failing;
  }
}

// The step that failed wrote no keys: nobody may find its pages, although they were offered when it was scheduled.
TEST(SchedulerFailure, NothingOfAFailedStepIsFoundAgain) {
  for (const int ahead : {0, 1}) {
    Serving serving({.num_pages = 40, .ahead = ahead});
    serving.add(1, prompt_of(60), kParams);
    ASSERT_NE(serving.scheduler.schedule(), nullptr);
    std::vector<Output> outputs;
    serving.add(2, prompt_of(60), {.max_tokens = 3});
    const bool behind = ahead > 0 && serving.scheduler.schedule() != nullptr;  // reads what 1 would have written
    ASSERT_EQ(behind, ahead > 0);
    serving.scheduler.fail_step("failed", outputs);
    ASSERT_EQ(outputs.size(), 1U);
    EXPECT_EQ(outputs[0].finish_reason, FinishReason::kError);
    EXPECT_EQ(serving.scheduler.stats().num_waiting, 1);
    if (ahead > 0) serving.scheduler.update({}, outputs);  // its result, whatever it is, is dropped
    EXPECT_EQ(outputs.size(), 1U);
    serving.run();
    serving.expect_right(2);
    EXPECT_EQ(serving.answers[2].cached_tokens, ahead > 0 ? 48 : 0);  // of its first admission
  }
}

// StepResult::failures: one request ends, its neighbours do not notice, its slot and pages serve others.
TEST(SchedulerFailure, OneRequestOfAStep) {
  for (const int ahead : {0, 1}) {
    for (int at = 1; at < 12; ++at) {
      Serving serving({.num_pages = 60, .ahead = ahead});
      for (uint64_t id = 1; id <= 3; ++id) serving.add(id, prompt_of(20, id), kParams);
      int executed = 0;
      serving.spoil = [&](const Step& step, StepResult& result) {
        if (++executed == at) result.failures.push_back({.slot = step.row_slots[1], .reason = "logits are not finite"});
      };
      serving.run();
      int failed = 0;
      for (uint64_t id = 1; id <= 3; ++id) {
        if (serving.answers[id].finish_reason == FinishReason::kError) {
          EXPECT_EQ(serving.answers[id].error, "logits are not finite");
          ++failed;
        } else {
          serving.expect_right(id);
        }
      }
      EXPECT_EQ(failed, 1);
      serving.add(4, prompt_of(20, 2), kParams);  // whatever the failed one left is not found
      serving.run();
      serving.expect_right(4);
    }
  }
}

TEST(SchedulerFailure, AResultOfAnotherShapeIsAnError) {
  Serving serving({.num_pages = 10});
  serving.add(1, prompt_of(5), kParams);
  ASSERT_NE(serving.scheduler.schedule(), nullptr);
  std::vector<Output> outputs;
  EXPECT_THROW(serving.scheduler.update({}, outputs), Error);
}

}  // namespace
}  // namespace quaver
