// Short of pages: the youngest gives way and loses nothing.
#include <gtest/gtest.h>

#include "serving.h"

namespace quaver {
namespace {

using testing::prompt_of;
using testing::Serving;

// B40: 8 streams in 40 pages of 16 tokens, each 4 pages at first and 12 at the end.
TEST(Preemption, EveryAnswerIsTheSoloOne) {
  for (const bool invariant : {false, true}) {
    for (const bool caching : {false, true}) {
      for (const int ahead : {0, 1}) {
        Serving serving(
            {.num_pages = 40, .options = {.prefix_caching = caching, .batch_invariant = invariant}, .ahead = ahead});
        for (uint64_t id = 1; id <= 8; ++id) {
          serving.add(id, prompt_of(64, id),
                      {.sampling = {.temperature = id % 2 == 0 ? 0.8 : 0.0, .seed = id},
                       .max_tokens = 128,
                       .ignore_eos = true,
                       .logprobs = 0});
        }
        serving.run(2000);
        for (uint64_t id = 1; id <= 8; ++id) {
          serving.expect_right(id);
          EXPECT_EQ(serving.answers[id].tokens.size(), 128U);
        }
        const EngineStats stats = serving.scheduler.stats();
        EXPECT_GT(stats.preemptions_total, 0);
        EXPECT_EQ(stats.generated_tokens_total, 8 * 128);
        EXPECT_EQ(stats.prompt_tokens_total, 8 * 64);  // not the generated ones of those that came back
      }
    }
  }
}

// In batch-invariant mode generated tokens are computed one a step, again as at first: a chunk holds prompt tokens
// only.
TEST(Preemption, BatchInvariantModeRecomputesAsDecodeRows) {
  Serving serving({.num_pages = 24, .options = {.batch_invariant = true}});
  int64_t replayed = 0;
  serving.on_step = [&](const Step& step) {
    for (size_t row = 0; row < step.batch.seq_lens.size(); ++row) {
      const auto first = static_cast<size_t>(step.batch.query_start[row]);
      const int32_t count = step.batch.query_start[row + 1] - step.batch.query_start[row];
      EXPECT_TRUE(count == 1 || step.batch.seq_lens[row] <= 40);
      replayed += step.batch.positions[first] >= 40 && step.batch.token_ids[first] >= 0 ? 1 : 0;
    }
  };
  for (uint64_t id = 1; id <= 4; ++id) serving.add(id, prompt_of(40, id), {.max_tokens = 100, .ignore_eos = true});
  serving.run();
  for (uint64_t id = 1; id <= 4; ++id) serving.expect_right(id);
  EXPECT_GT(serving.scheduler.stats().preemptions_total, 0);
  EXPECT_GT(replayed, 0);
}

// The youngest goes, to the front of the queue; nobody is let in by the step that sent it there.
TEST(Preemption, TheYoungestGoesToTheFrontOfTheQueue) {
  Serving serving({.num_pages = 9, .ahead = 0});
  for (uint64_t id = 1; id <= 2; ++id) serving.add(id, prompt_of(60, id), {.max_tokens = 60, .ignore_eos = true});
  serving.step();
  serving.add(3, prompt_of(10, 3), {.max_tokens = 1});  // would fit into what a preemption frees
  int64_t preempted_at = -1;
  for (int64_t i = 0; i < 40 && preempted_at < 0; ++i) {
    const Step* const step = serving.step();
    ASSERT_NE(step, nullptr);
    if (serving.scheduler.stats().preemptions_total > 0) {
      preempted_at = i;
      EXPECT_TRUE(step->starts.empty());
      EXPECT_EQ(testing::row_sizes(*step), (std::vector<int32_t>{1}));
    }
  }
  ASSERT_GE(preempted_at, 0);
  EXPECT_EQ(serving.scheduler.stats().num_waiting, 2);
  serving.run();
  for (uint64_t id = 1; id <= 3; ++id) serving.expect_right(id);
  EXPECT_EQ(serving.scheduler.stats().preemptions_total, 1);
}

// vllm#25538: what was preempted does not come back to be preempted again without anyone getting on. Between two
// preemptions of one request someone else must have ended.
TEST(Preemption, NoPingPong) {
  for (const int64_t pages : {13, 14, 17, 20, 25}) {
    Serving serving({.num_pages = pages});
    for (uint64_t id = 1; id <= 6; ++id) serving.add(id, prompt_of(30, id), {.max_tokens = 160, .ignore_eos = true});
    serving.run();
    for (uint64_t id = 1; id <= 6; ++id) serving.expect_right(id);
    EXPECT_LE(serving.scheduler.stats().preemptions_total, 6 * 6) << pages;
  }
}

// B35: aborted while preempted, with and without a token in flight.
TEST(Preemption, AbortOfAPreemptedRequest) {
  for (const int ahead : {0, 1}) {
    for (const int later : {0, 1, 2}) {
      Serving serving({.num_pages = 9, .ahead = ahead});
      for (uint64_t id = 1; id <= 2; ++id) serving.add(id, prompt_of(60, id), {.max_tokens = 60, .ignore_eos = true});
      while (serving.scheduler.stats().preemptions_total == 0) ASSERT_NE(serving.step(), nullptr);
      for (int i = 0; i < later; ++i) serving.step();
      EXPECT_EQ(serving.scheduler.stats().num_waiting, 1);
      serving.abort(2);
      EXPECT_EQ(serving.answers[2].finish_reason, FinishReason::kAbort);
      EXPECT_EQ(serving.scheduler.stats().num_waiting, 0);
      serving.run();
      serving.expect_right(1);
    }
  }
}

// A token that was in flight when its request was preempted may end it.
TEST(Preemption, ATokenInFlightCounts) {
  const std::vector<int32_t> second = prompt_of(60, 2);
  const std::vector<int32_t> text = testing::expected_tokens(second, {.max_tokens = 60, .ignore_eos = true});
  int ended_while_waiting = 0;
  for (size_t stop = 0; stop < 20; ++stop) {
    Serving serving({.num_pages = 9});
    serving.add(1, prompt_of(60, 1), {.max_tokens = 60, .ignore_eos = true});
    serving.add(2, second, {.max_tokens = 60, .ignore_eos = true, .stop_token_ids = {text[stop]}});
    while (!serving.scheduler.idle()) {
      const int64_t waiting = serving.scheduler.stats().num_waiting;
      const Step* const step = serving.step();
      const bool ended = serving.answers[2].finish_reason.has_value();
      if (step != nullptr && ended && waiting == 0 && serving.scheduler.stats().preemptions_total == 1) {
        ++ended_while_waiting;
        break;
      }
      if (ended) break;
    }
    serving.run();
    serving.expect_right(1);
    serving.expect_right(2);
  }
  EXPECT_GT(ended_while_waiting, 0);
}

// Prompt logprobs asked for before a preemption are not asked for again, those after it are.
TEST(Preemption, PromptLogprobsComeOnce) {
  for (const int ahead : {0, 1}) {
    Serving serving({.num_pages = 12, .options = {.prefill_chunk_tokens = 10}, .ahead = ahead});
    serving.add(1, prompt_of(60, 1), {.max_tokens = 130, .ignore_eos = true});
    for (int i = 0; i < 30; ++i) serving.step();
    serving.add(2, prompt_of(80, 2), {.max_tokens = 8, .prompt_logprobs = 0});  // computed in 8 steps while 1 grows
    serving.run();
    EXPECT_GT(serving.scheduler.stats().preemptions_total, 0);
    serving.expect_right(1);
    serving.expect_right(2);
  }
}

}  // namespace
}  // namespace quaver
