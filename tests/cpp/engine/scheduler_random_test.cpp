// Hundreds of requests of every kind through pools of every size, aborted at any time: every answer that came to its
// end is the one the request gets alone, and no page is lost.
#include <gtest/gtest.h>

#include "serving.h"

namespace quaver {
namespace {

using testing::plan_of;
using testing::Random;
using testing::Serving;

struct Shape {
  CachePlan plan;
  bool tiny = false;  ///< a pool that holds one or two of the longest requests
};

constexpr int64_t kLongestPrompt = 90;
constexpr int64_t kMostTokens = 60;

RequestParams random_params(Random& random) {
  RequestParams params;
  params.max_tokens = random.below(8) == 0 ? random.below(2) : random.below(kMostTokens + 1);
  params.min_tokens = random.below(params.max_tokens + 1);
  params.ignore_eos = random.below(2) == 0;
  params.sampling.temperature = random.below(2) == 0 ? 0 : 1;
  params.sampling.seed = random.bits() % 5;
  params.logprobs = random.below(3) == 0 ? 0 : -1;
  params.prompt_logprobs = random.below(5) == 0 ? 0 : -1;
  while (random.below(3) == 0) {  // one text in a few stops early
    for (int i = 0; i < 20; ++i)
      params.stop_token_ids.push_back(static_cast<int32_t>(random.below(testing::kStubVocab)));
  }
  return params;
}

std::vector<int32_t> random_prompt(Random& random) {
  // One of three beginnings, so that prompts share pages.
  const int64_t length = 1 + random.below(kLongestPrompt);
  std::vector<int32_t> prompt = testing::prompt_of(kLongestPrompt, static_cast<uint64_t>(random.below(3)));
  prompt.resize(static_cast<size_t>(length));
  for (int64_t i = random.below(2 * length); i < length; ++i) {
    prompt[static_cast<size_t>(i)] = static_cast<int32_t>(random.below(testing::kStubVocab));
  }
  return prompt;
}

/// Images of at most `most` tokens; the more there are the shorter the text between them.
std::vector<TokenSpan> random_spans(Random& random, int64_t prompt_len, int64_t most) {
  std::vector<TokenSpan> spans;
  for (int64_t first = random.below(30); first < prompt_len;) {
    const int64_t last = std::min(prompt_len, first + 1 + random.below(most));
    spans.push_back({.first = first, .last = last});
    first = last + random.below(20);
  }
  return spans;
}

void serve_randomly(const Shape& shape, uint64_t seed, EngineStats& sum) {
  Random random(seed);
  EngineOptions options;
  options.max_num_seqs = 1 + random.below(12);
  options.max_num_batched_tokens = 1 + random.below(100);
  options.prefill_chunk_tokens = random.below(3) == 0 ? 0 : 1 + random.below(40);
  options.prefix_caching = random.below(4) != 0;
  options.batch_invariant = random.below(2) == 0;
  // Rare, as on a GPU: chunks of several tokens at least, and then no images.
  int64_t least_chunk = 1;
  if (random.below(3) == 0) least_chunk = 1 + random.below(std::min<int64_t>(5, (max_chunk(options) + 1) / 2));
  const int64_t stored = kLongestPrompt + kMostTokens - 1;
  const int64_t most = shape.plan.blocks_for(stored, std::min(max_chunk(options), stored));
  Serving serving({.plan = shape.plan,
                   .num_pages = shape.tiny ? most + random.below(most) : 4 * most,
                   .options = options,
                   .least_chunk = least_chunk,
                   .ahead = static_cast<int>(random.below(2))});
  uint64_t last_id = 0;
  std::set<uint64_t> aborted;
  for (int round = 0; round < 250; ++round) {
    for (int64_t arrivals = random.below(6) - 3; arrivals > 0; --arrivals) {
      ++last_id;
      std::vector<int32_t> prompt = random_prompt(random);
      std::vector<TokenSpan> spans;
      if (least_chunk == 1 && random.below(3) == 0)
        spans = random_spans(random, std::ssize(prompt), max_chunk(options));
      serving.add(last_id, std::move(prompt), random_params(random), random.below(8) == 0 ? "salt" : "", spans);
    }
    if (last_id > 0 && random.below(8) == 0) {
      const uint64_t id = 1 + static_cast<uint64_t>(random.below(static_cast<int64_t>(last_id)));
      if (!serving.answers[id].finish_reason) aborted.insert(id);
      serving.abort(id);
    }
    const bool waiting = serving.scheduler.stats().num_waiting > 0;
    const bool progress = serving.step() != nullptr || !serving.scheduler.idle();
    ASSERT_TRUE(progress || !waiting);
  }
  serving.run();
  for (uint64_t id = 1; id <= last_id; ++id) {
    if (aborted.contains(id)) {
      EXPECT_EQ(serving.answers[id].finish_reason, FinishReason::kAbort);
    } else {
      serving.expect_right(id);
    }
    if (::testing::Test::HasFailure()) FAIL() << "seed " << seed << " request " << id;
  }
  const EngineStats stats = serving.scheduler.stats();
  sum.preemptions_total += stats.preemptions_total;
  sum.cached_tokens_total += stats.cached_tokens_total;
  sum.generated_tokens_total += stats.generated_tokens_total;
}

TEST(SchedulerRandom, EveryAnswerIsTheSoloOne) {
  const std::vector<CachePlan> plans{
      plan_of({{}}),
      plan_of({{.window = 20}}),
      plan_of({{}, {.window = 33}}),
      plan_of({{.num_kv_heads = 1}, {.num_kv_heads = 2, .window = 24}}),  // pages of 32 and 16 tokens
      plan_of({{}, {.window = 1}, {.window = 16}, {.window = 17}, {.window = 40}, {.window = 200}}),
  };
  EngineStats sum;
  uint64_t seed = 0;
  for (const CachePlan& plan : plans) {
    for (const bool tiny : {true, false}) {
      for (int run = 0; run < 6; ++run) {
        ++seed;
        ASSERT_NO_THROW(serve_randomly({.plan = plan, .tiny = tiny}, seed, sum)) << "seed " << seed;
        if (HasFatalFailure()) return;
      }
    }
  }
  EXPECT_GT(sum.preemptions_total, 100);
  EXPECT_GT(sum.cached_tokens_total, 1000);
  EXPECT_GT(sum.generated_tokens_total, 10000);
}

}  // namespace
}  // namespace quaver
