// The engine's thread over a stub runner: answers, limits, aborts, many callers.
#include "quaver/engine.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <thread>

#include "served.h"

namespace quaver {
namespace {

using testing::expect_error;
using testing::plan_of;
using testing::prompt_of;
using testing::Served;
using testing::StubRunner;

// B42: 20 requests of all kinds together, each with the answer it gets alone; seeds are its own.
TEST(Engine, AnswersAreThoseOfEachRequestAlone) {
  for (const int latency_us : {0, 300}) {
    Served served(
        {.plan = plan_of({{}, {.window = 24}}), .num_pages = 60, .latency = std::chrono::microseconds(latency_us)},
        {.max_num_seqs = 8, .max_num_batched_tokens = 64});
    for (uint64_t id = 1; id <= 20; ++id) {
      RequestParams params{.max_tokens = 30};
      if (id % 2 == 0) params.sampling = {.temperature = 1.0, .seed = id % 6};
      if (id % 5 == 0) params.prompt_logprobs = 0;
      served.add(id, prompt_of(static_cast<int64_t>(id * 7 % 90 + 1), id % 4), params);
    }
    served.finish_all();
    for (uint64_t id = 1; id <= 20; ++id) served.expect_right(id);
    const EngineStats stats = served.engine.stats();
    EXPECT_EQ(stats.num_running + stats.num_waiting, 0);
    EXPECT_EQ(stats.num_free_pages, 60);
    EXPECT_GE(stats.generated_tokens_total, 20);
  }
}

// Step n+1 is launched while step n runs: here n is not done before that.
TEST(Engine, TheNextStepIsLaunchedWhileOneRuns) {
  std::atomic<int64_t> launched{0};
  std::atomic<int64_t> late{0};
  constexpr int64_t kSteps = 10;
  {
    Served served({.plan = plan_of({{}}),
                   .num_pages = 10,
                   .before_launch = [&](int64_t) { ++launched; },
                   .before_execute =
                       [&](int64_t step) {
                         const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
                         while (step + 1 < kSteps && launched < step + 2) {
                           if (std::chrono::steady_clock::now() > limit) {
                             ++late;
                             return;
                           }
                           std::this_thread::yield();
                         }
                       }});
    served.add(1, prompt_of(5), {.max_tokens = kSteps, .ignore_eos = true});
    served.finish_all();
    served.expect_right(1);
    EXPECT_EQ(late, 0);
  }
}

// B37, B39: what can never run is refused at once, with its numbers.
TEST(Engine, RefusesWhatCanNeverRun) {
  Served served({.plan = plan_of({{}}), .num_pages = 32, .max_positions = 1000}, {.max_model_len = 256});
  EXPECT_EQ(served.engine.max_model_len(), 256);
  EXPECT_EQ(served.engine.max_request_tokens(), 256);
  const auto refused = [&](int64_t prompt, int64_t max_tokens, std::initializer_list<std::string_view> parts) {
    expect_error(
        [&] { served.engine.add({.id = 1, .prompt = prompt_of(prompt), .params = {.max_tokens = max_tokens}}); },
        ErrorKind::kInvalidArgument, parts);
  };
  refused(0, 1, {"prompt of 0 tokens"});
  refused(256, 1, {"prompt of 256 tokens", "max_tokens 1", "max_model_len 256"});
  refused(257, 1, {"prompt of 257 tokens", "max_model_len 256"});
  refused(257, 0, {"prompt of 257 tokens"});
  refused(100, 200, {"prompt of 100 tokens", "max_tokens 200", "max_model_len 256"});
  refused(10, int64_t{1} << 62, {"max_model_len 256"});
  refused(10, -1, {"max_tokens -1"});
  for (const int32_t id : {-1, 1000}) {
    expect_error([&] { served.engine.add({.id = 1, .prompt = {1, id}}); }, ErrorKind::kInvalidArgument,
                 {"prompt token id", "0 to 999"});
  }
  expect_error([&] { served.engine.add({.id = 1, .prompt = {1}, .params = {.sampling = {.top_p = 2}}}); },
               ErrorKind::kInvalidArgument, {"top_p 2"});
  uint64_t id = 0;
  for (const auto& [prompt, max_tokens] :
       std::vector<std::pair<int64_t, int64_t>>{{254, 1}, {255, 1}, {256, 0}, {100, 156}}) {
    served.add(++id, prompt_of(prompt), {.max_tokens = max_tokens, .ignore_eos = true});
  }
  served.finish_all();
  for (uint64_t i = 1; i <= id; ++i) served.expect_right(i);
}

// B39: 12 pages of 16 tokens. The key of the last token is never stored, so 192 prompt tokens and one more fit.
TEST(Engine, RefusesImagesThatCannotBeComputed) {
  const auto refused = [](bool takes_spans, const std::vector<TokenSpan>& spans, std::string_view message) {
    Served served({.plan = plan_of({{}}), .num_pages = 32, .takes_spans = takes_spans}, {.prefill_chunk_tokens = 8});
    expect_error([&] { served.engine.add({.id = 1, .prompt = prompt_of(20), .spans = spans}); },
                 ErrorKind::kInvalidArgument, {message});
  };
  refused(true, {{2, 11}}, "span [2, 11): expected at most 8 tokens");
  refused(true, {{12, 21}}, "span [12, 21): expected at least one token of the 20");
  refused(false, {{2, 5}}, "spans 1: expected none");
}

TEST(Engine, ASmallPool) {
  Served served({.plan = plan_of({{}}), .num_pages = 12}, {.max_model_len = 1024});
  EXPECT_EQ(served.engine.max_request_tokens(), 193);
  uint64_t id = 0;
  for (const int64_t prompt : {193, 250}) {
    expect_error([&] { served.engine.add({.id = 1, .prompt = prompt_of(prompt), .params = {.max_tokens = 1}}); },
                 ErrorKind::kInvalidArgument, {"prompt of", "max_tokens 1", "cache pages", "12"});
  }
  expect_error([&] { served.engine.add({.id = 1, .prompt = prompt_of(191), .params = {.max_tokens = 3}}); },
               ErrorKind::kInvalidArgument, {"prompt of 191", "max_tokens 3"});
  for (const int64_t prompt : {191, 192, 150, 150}) {
    ++id;
    served.add(id, prompt_of(prompt, id), {.max_tokens = 1});
  }
  served.finish_all();
  for (uint64_t i = 1; i <= id; ++i) served.expect_right(i);
}

// B42: a live id is refused; the first of the two is not disturbed. After its end the id is free again.
TEST(Engine, DuplicateIds) {
  Served served({.plan = plan_of({{}}), .num_pages = 20, .latency = std::chrono::microseconds(500)});
  served.add(5, prompt_of(9), {.max_tokens = 20, .ignore_eos = true});
  expect_error([&] { served.engine.add({.id = 5, .prompt = {1}}); }, ErrorKind::kInvalidArgument, {"request id 5"});
  served.finish_all();
  served.expect_right(5);
  served.add(5, prompt_of(9, 2), {.max_tokens = 3});
  served.finish_all();
  served.expect_right(5);
}

// Many callers at once; the destructor ends what is left.
TEST(Engine, CallersOnManyThreads) {
  Served served({.plan = plan_of({{}}), .num_pages = 100}, {.max_num_seqs = 16});
  std::vector<std::thread> callers;
  for (uint64_t caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller] {
      for (uint64_t i = 0; i < 25; ++i) {
        const uint64_t id = 100 * caller + i;
        served.engine.add({.id = id, .prompt = prompt_of(20, id), .params = {.max_tokens = 10, .ignore_eos = true}});
        if (i % 5 == 4) served.engine.abort(id);
        (void)served.engine.stats();
        (void)served.engine.failure();
      }
    });
  }
  int ended = 0;
  int whole = 0;
  while (ended < 100) {
    for (const Output& output : served.engine.wait(10)) {
      ended += output.finish_reason ? 1 : 0;
      whole += output.finish_reason == FinishReason::kLength ? 1 : 0;
    }
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_GE(whole, 80);
  served.add(1000, prompt_of(20), {.max_tokens = 1000, .ignore_eos = true});
}

// Memory does not grow with the number of requests served: 6 rounds of requests, some aborted, after 2 to warm up.
TEST(Engine, MemoryStaysFlat) {
  Served served({.plan = plan_of({{}, {.window = 20}}), .num_pages = 60}, {.max_num_seqs = 8});
  const auto in_use = [] { return static_cast<int64_t>(mallinfo2().uordblks); };
  int64_t before = 0;
  uint64_t id = 0;
  for (int round = 0; round < 8; ++round) {
    if (round == 2) before = in_use();
    for (int i = 0; i < 100; ++i) {
      ++id;
      served.add(id, prompt_of(1 + static_cast<int64_t>(id * 31 % 120), id), {.max_tokens = 10});
      if (i % 7 == 0) served.engine.abort(id);
    }
    served.finish_all();
    served.answers.clear();
    served.requests.clear();
  }
  EXPECT_LT(in_use() - before, 50000) << "600 requests of about 60 tokens";
}

TEST(Engine, WaitTakesAsLongAsItMay) {
  Served served({.plan = plan_of({{}}), .num_pages = 4});
  EXPECT_TRUE(served.engine.wait(0).empty());
  EXPECT_TRUE(served.engine.wait(-1).empty());
  const auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(served.engine.wait(0.05).empty());
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(50));
}

TEST(Engine, RefusesOptionsThatCannotWork) {
  const auto make = [](const EngineOptions& options) {
    return Served({.plan = plan_of({{}}), .num_pages = 4, .max_positions = 512}, options);
  };
  expect_error([&] { make({.max_model_len = 513}); }, ErrorKind::kInvalidArgument,
               {"max_model_len 513", "max_position_embeddings 512"});
  expect_error([&] { make({.max_num_seqs = 0}); }, ErrorKind::kInvalidArgument, {"max_num_seqs 0"});
}

TEST(Engine, FinishReasonNames) {
  EXPECT_EQ(finish_reason_name(FinishReason::kStop), "stop");
  EXPECT_EQ(finish_reason_name(FinishReason::kLength), "length");
  EXPECT_EQ(finish_reason_name(FinishReason::kAbort), "abort");
  EXPECT_EQ(finish_reason_name(FinishReason::kError), "error");
}

}  // namespace
}  // namespace quaver
