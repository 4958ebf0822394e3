// What a step holds, and how requests end.
#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include "serving.h"
#include "testing/expect_error.h"

namespace quaver {
namespace {

using testing::prompt_of;
using testing::row_sizes;
using testing::Serving;

const RequestParams kLong{.max_tokens = 50, .ignore_eos = true};
using Sizes = std::vector<int32_t>;

TEST(Scheduler, DecodesFirstThenPrefillsInOrderOfArrival) {
  Serving serving({.num_pages = 100, .options = {.max_num_batched_tokens = 40, .prefill_chunk_tokens = 30}});
  serving.add(1, prompt_of(5), kLong);
  EXPECT_EQ(row_sizes(*serving.step()), (Sizes{5}));
  serving.add(2, prompt_of(70, 2), kLong);
  serving.add(3, prompt_of(12, 3), kLong);
  // The budget of 40 counts prompt tokens only: decode rows come on top. At most 30 are of one request.
  EXPECT_EQ(row_sizes(*serving.step()), (Sizes{1, 30, 10}));
  EXPECT_EQ(row_sizes(*serving.step()), (Sizes{1, 30, 2}));
  EXPECT_EQ(row_sizes(*serving.step()), (Sizes{1, 1, 10}));  // 3 decodes, 2 computes its last 10
  serving.add(4, prompt_of(41, 4), kLong);
  EXPECT_EQ(row_sizes(*serving.step()), (Sizes{1, 1, 1, 30}));
  EXPECT_EQ(row_sizes(*serving.step()), (Sizes{1, 1, 1, 11}));
  EXPECT_EQ(row_sizes(*serving.step()), (Sizes{1, 1, 1, 1}));
  serving.run();
  for (uint64_t id = 1; id <= 4; ++id) serving.expect_right(id);
}

// Neither a chunk nor what it leaves of a prompt is shorter than the least chunk.
TEST(Scheduler, LeastChunk) {
  Serving serving(
      {.num_pages = 100, .options = {.max_num_batched_tokens = 40, .prefill_chunk_tokens = 30}, .least_chunk = 4});
  serving.add(1, prompt_of(3), kLong);  // as it is
  EXPECT_EQ(row_sizes(*serving.step()), (Sizes{3}));
  serving.add(2, prompt_of(70, 2), kLong);
  serving.add(3, prompt_of(12, 3), kLong);
  EXPECT_EQ(row_sizes(*serving.step()), (Sizes{1, 30, 8}));  // 10 would leave 2
  EXPECT_EQ(row_sizes(*serving.step()), (Sizes{1, 30, 4}));
  EXPECT_EQ(row_sizes(*serving.step()), (Sizes{1, 1, 10}));
  serving.add(4, prompt_of(33, 4), kLong);
  EXPECT_EQ(row_sizes(*serving.step()), (Sizes{1, 1, 1, 29}));
  EXPECT_EQ(row_sizes(*serving.step()), (Sizes{1, 1, 1, 4}));
  serving.add(5, prompt_of(30, 5), kLong);
  serving.add(6, prompt_of(8, 6), kLong);
  serving.add(7, prompt_of(20, 7), kLong);  // for which a budget of 2 is left
  EXPECT_EQ(row_sizes(*serving.step()), (Sizes{1, 1, 1, 1, 30, 8}));
  EXPECT_EQ(row_sizes(*serving.step()), (Sizes{1, 1, 1, 1, 1, 1, 20}));
  serving.run();
  for (uint64_t id = 1; id <= 7; ++id) serving.expect_right(id);
  // Of three whole pages and a few tokens the cache has three, or two where too few would be left to compute.
  for (const auto& [length, cached] : {std::pair{52, 48}, {51, 32}, {4, 0}}) {
    serving.add(8, prompt_of(length, 8), {.max_tokens = 1});
    serving.run();
    serving.add(9, prompt_of(length, 8), {.max_tokens = 1});
    serving.run();
    EXPECT_EQ(serving.answers[9].cached_tokens, cached) << length;
    serving.expect_right(9);
  }
}

TEST(Scheduler, AtMostMaxNumSeqsRun) {
  Serving serving({.num_pages = 100, .options = {.max_num_seqs = 3}});
  for (uint64_t id = 1; id <= 10; ++id) serving.add(id, prompt_of(4, id), {.max_tokens = static_cast<int64_t>(3 * id)});
  serving.on_step = [](const Step& step) { EXPECT_LE(step.batch.num_sequences(), 3); };
  serving.run();
  for (uint64_t id = 1; id <= 10; ++id) serving.expect_right(id);
}

// The first in the queue is not overtaken by a smaller one that would fit.
TEST(Scheduler, FirstComeFirstServed) {
  Serving serving({.num_pages = 10});
  serving.add(1, prompt_of(100, 1), {.max_tokens = 30, .ignore_eos = true});  // 7 pages
  serving.add(2, prompt_of(60, 2), {.max_tokens = 1});                        // 4: not beside 1
  serving.add(3, prompt_of(10, 3), {.max_tokens = 1});                        // 1: would fit
  for (int i = 0; i < 10; ++i) serving.step();
  EXPECT_FALSE(serving.answers[3].finish_reason);
  EXPECT_EQ(serving.scheduler.stats().num_waiting, 2);
  serving.run();
  for (uint64_t id = 1; id <= 3; ++id) serving.expect_right(id);
}

// vllm#45387: two prompts of which each alone fits never hold half the pool each.
TEST(Scheduler, APromptIsAdmittedOnlyIfAllOfItFits) {
  for (const int64_t chunk : {1, 16, 50, 1000}) {
    Serving serving({.num_pages = 12, .options = {.prefill_chunk_tokens = chunk}});
    serving.add(1, prompt_of(150, 1), {.max_tokens = 5, .ignore_eos = true});
    serving.add(2, prompt_of(150, 2), {.max_tokens = 5, .ignore_eos = true});
    serving.on_step = [](const Step& step) { EXPECT_EQ(step.batch.num_sequences(), 1); };
    serving.run();
    serving.expect_right(1);
    serving.expect_right(2);
    EXPECT_EQ(serving.scheduler.stats().preemptions_total, 0);
  }
}

// A request whose end is known is not run further; one that stops by id costs one row, which is dropped.
TEST(Scheduler, StepsOfARequest) {
  const std::vector<int32_t> prompt = prompt_of(5);
  const std::vector<int32_t> text = testing::expected_tokens(prompt, kLong);
  for (const int ahead : {0, 1}) {
    int64_t rows = 0;
    Serving serving({.num_pages = 20, .ahead = ahead});
    serving.on_step = [&](const Step& step) { rows += step.batch.num_sequences(); };
    serving.add(1, prompt, {.max_tokens = 20, .ignore_eos = true});
    serving.run();
    EXPECT_EQ(rows, 20);
    serving.expect_right(1);
    rows = 0;
    serving.add(2, prompt, {.max_tokens = 50, .ignore_eos = true, .stop_token_ids = {text[9]}});
    serving.run();
    EXPECT_EQ(rows, 10 + ahead);
    serving.expect_right(2);
    EXPECT_EQ(serving.answers[2].tokens.size(), 10U);
  }
}

TEST(Scheduler, StopIdsEosAndMinTokens) {
  const std::vector<int32_t> prompt = prompt_of(5);
  const std::vector<int32_t> text = testing::expected_tokens(prompt, kLong);
  Serving serving({.num_pages = 100});
  serving.add(1, prompt, {.max_tokens = 50, .stop_token_ids = {text[4], text[2]}});
  serving.add(2, prompt, {.max_tokens = 50, .min_tokens = 10, .ignore_eos = true, .stop_token_ids = {text[3]}});
  serving.add(3, prompt, {.max_tokens = 3, .stop_token_ids = {text[2]}});  // both ends at once: it stopped
  serving.add(4, prompt_of(1, 4), {.max_tokens = 2000});                   // eos comes after about 1000 tokens
  serving.run();
  for (uint64_t id = 1; id <= 4; ++id) serving.expect_right(id);
  EXPECT_EQ(serving.answers[1].tokens.size(), 3U);
  EXPECT_GT(serving.answers[2].tokens.size(), 10U);
  EXPECT_EQ(serving.answers[3].finish_reason, FinishReason::kStop);
}

TEST(Scheduler, SmallestRequests) {
  for (const int ahead : {0, 1}) {
    Serving serving({.plan = testing::plan_of({{}, {.window = 1}}), .num_pages = 40, .ahead = ahead});
    uint64_t id = 0;
    for (const int64_t prompt : {1, 2, 15, 16, 17}) {
      for (const int64_t max_tokens : {0, 1, 2}) {
        ++id;
        serving.add(id, prompt_of(prompt, id), {.max_tokens = max_tokens});
      }
    }
    serving.run();
    for (uint64_t i = 1; i <= id; ++i) serving.expect_right(i);
  }
}

// B43: arrays are the same for every chunk size and cover the prompt once; nothing is drawn for max_tokens 0.
TEST(Scheduler, PromptLogprobsInChunks) {
  for (const int64_t chunk : {1, 3, 7, 1000}) {
    for (const int ahead : {0, 1}) {
      Serving serving({.num_pages = 40, .options = {.prefill_chunk_tokens = chunk}, .ahead = ahead});
      serving.add(1, prompt_of(50), {.max_tokens = 5, .ignore_eos = true, .logprobs = 0, .prompt_logprobs = 0});
      serving.add(2, prompt_of(33), {.max_tokens = 0, .prompt_logprobs = 1});
      serving.add(3, prompt_of(1), {.max_tokens = 0, .prompt_logprobs = 1});
      serving.run();
      for (uint64_t id = 1; id <= 3; ++id) serving.expect_right(id);
      EXPECT_EQ(serving.scheduler.stats().generated_tokens_total, 5);
    }
  }
}

// B35: whatever a request was doing, its pages are free as soon as the abort is taken, and nothing more is said of it.
TEST(Scheduler, AbortAtEveryStage) {
  for (const int ahead : {0, 1}) {
    for (int steps = 0; steps < 12; ++steps) {
      Serving serving({.plan = testing::plan_of({{}, {.window = 20}}),
                       .num_pages = 20,
                       .options = {.prefill_chunk_tokens = 16},
                       .ahead = ahead});
      serving.add(1, prompt_of(40), {.max_tokens = 6, .ignore_eos = true});  // 3 chunks, then 5 decodes
      serving.add(2, prompt_of(200, 2), {.max_tokens = 1});                  // never fits beside: waits
      for (int i = 0; i < steps; ++i) serving.step();
      const bool ended = serving.answers[1].finish_reason.has_value();
      serving.abort(2);
      serving.abort(1);
      serving.abort(1);
      serving.abort(77);
      EXPECT_EQ(serving.free_pages(), 20) << steps;
      EXPECT_EQ(serving.answers[1].finish_reason, ended ? FinishReason::kLength : FinishReason::kAbort) << steps;
      EXPECT_EQ(serving.answers[2].finish_reason, FinishReason::kAbort);
      serving.add(3, prompt_of(50, 3), {.max_tokens = 4});  // the next one is right, on the same pages
      serving.add(4, prompt_of(40), {.max_tokens = 4});     // and one that finds what the ended one has computed
      serving.run();
      serving.expect_right(3);
      serving.expect_right(4);
    }
  }
}

// A live id cannot be given twice; one that ended can, even while a row of the first is in flight.
TEST(Scheduler, IdsAreUniqueAmongLiveRequests) {
  Serving serving({.num_pages = 20});
  serving.add(1, prompt_of(5), kLong);
  EXPECT_THROW(serving.scheduler.add({.id = 1, .prompt = {1}}), Error);
  serving.step();
  serving.step();
  serving.abort(1);
  serving.add(1, prompt_of(9, 2), kLong);
  serving.run();
  serving.expect_right(1);
}

TEST(Scheduler, RefusesOptionsThatCannotWork) {
  const auto make = [](const EngineOptions& options) {
    return Scheduler({.plan = testing::plan_of({{}}), .num_pages = 1, .options = options});
  };
  EXPECT_THROW(make({.max_num_seqs = 0}), Error);
  EXPECT_THROW(make({.max_num_batched_tokens = 0}), Error);
  EXPECT_THROW(make({.prefill_chunk_tokens = -1}), Error);
  const auto in_chunks_of_three = [](const EngineOptions& options) {
    return Scheduler({.plan = testing::plan_of({{}}), .num_pages = 1, .options = options, .least_chunk = 3});
  };
  EXPECT_NO_THROW(in_chunks_of_three({.prefill_chunk_tokens = 5}));
  testing::expect_error([&] { in_chunks_of_three({.prefill_chunk_tokens = 4}); }, ErrorKind::kInvalidArgument,
                        {"prefill_chunk_tokens", "4", "at least 5"});
  testing::expect_error([&] { in_chunks_of_three({.max_num_batched_tokens = 4}); }, ErrorKind::kInvalidArgument,
                        {"max_num_batched_tokens 4", "at least 5"});
}

}  // namespace
}  // namespace quaver
