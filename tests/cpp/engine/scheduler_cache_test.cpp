// B41: prefix caching through the scheduler. The stub model checks that every key read is this text's own.
#include <gtest/gtest.h>

#include "serving.h"

namespace quaver {
namespace {

using testing::plan_of;
using testing::prompt_of;
using testing::Serving;

uint64_t constant_hash(uint64_t /*previous*/, std::span<const int32_t> /*tokens*/, std::string_view /*salt*/) {
  return 42;
}

const RequestParams kShort{.max_tokens = 4, .ignore_eos = true};

// Twice the same prompt: full pages are found again, and one token at least is computed.
TEST(SchedulerCache, TheSecondTimeFullPagesAreFound) {
  for (const PrefixIndex::HashFunction hash : {&hash_token_block, &constant_hash}) {
    for (const int64_t length : {1, 15, 16, 17, 32, 33, 100}) {
      Serving serving({.num_pages = 40, .hash = hash});
      int64_t prompt_tokens = 0;
      serving.on_step = [&](const Step& step) {
        if (!step.starts.empty()) prompt_tokens = step.batch.num_tokens();
      };
      for (uint64_t id = 1; id <= 2; ++id) {
        serving.add(id, prompt_of(length), kShort);
        serving.run();
        serving.expect_right(id);
        const int64_t cached = id == 1 ? 0 : (length - 1) / 16 * 16;
        EXPECT_EQ(serving.answers[id].cached_tokens, cached) << length;
        EXPECT_EQ(prompt_tokens, length - cached);
      }
      EXPECT_EQ(serving.scheduler.stats().cached_tokens_total, (length - 1) / 16 * 16);
      EXPECT_EQ(serving.scheduler.stats().prompt_tokens_total, 2 * length);
    }
  }
}

// Equal prompts that arrive together share pages while the first is being computed: one step computes them once.
TEST(SchedulerCache, PromptsThatArriveTogetherShare) {
  Serving serving({.num_pages = 40});
  for (uint64_t id = 1; id <= 4; ++id) serving.add(id, prompt_of(70), kShort);
  EXPECT_EQ(testing::row_sizes(*serving.step()), (std::vector<int32_t>{70, 6, 6, 6}));
  serving.run();
  for (uint64_t id = 1; id <= 4; ++id) serving.expect_right(id);
}

// Hashes that collide never share pages: tokens are compared.
TEST(SchedulerCache, ForcedCollisionsNeverShare) {
  Serving serving({.plan = plan_of({{}, {.window = 20}}), .num_pages = 100, .hash = constant_hash});
  for (uint64_t id = 1; id <= 12; ++id) serving.add(id, prompt_of(40, id), kShort);
  serving.run();
  for (uint64_t id = 1; id <= 12; ++id) {
    serving.expect_right(id);
    EXPECT_EQ(serving.answers[id].cached_tokens, 0);
  }
}

TEST(SchedulerCache, SaltsSeparate) {
  Serving serving({.num_pages = 100});
  const std::vector<std::pair<std::string, int64_t>> salts{{"A", 0}, {"B", 0}, {"", 0}, {"A", 32}, {"B", 32}, {"", 32}};
  uint64_t id = 0;
  for (const auto& [salt, cached] : salts) {
    serving.add(++id, prompt_of(40), kShort, salt);
    serving.run();
    serving.expect_right(id);
    EXPECT_EQ(serving.answers[id].cached_tokens, cached) << "salt '" << salt << "'";
  }
  // A request for prompt logprobs reads nothing, but what it computes is shared, under its salt too.
  serving.add(++id, prompt_of(40, 2), {.max_tokens = 1, .prompt_logprobs = 0}, "A");
  serving.run();
  serving.add(++id, prompt_of(40, 2), kShort, "");
  serving.run();
  EXPECT_EQ(serving.answers[id].cached_tokens, 0);
  serving.add(++id, prompt_of(40, 2), kShort, "A");
  serving.run();
  EXPECT_EQ(serving.answers[id].cached_tokens, 32);
}

// vllm#8268: prompt logprobs of a prompt that is cached are all there.
TEST(SchedulerCache, PromptLogprobsOnACachedPrompt) {
  Serving serving({.num_pages = 40, .options = {.prefill_chunk_tokens = 20}});
  serving.add(1, prompt_of(50), kShort);
  serving.run();
  serving.add(2, prompt_of(50), {.max_tokens = 4, .ignore_eos = true, .prompt_logprobs = 0});
  serving.run();
  serving.expect_right(2);
  EXPECT_EQ(serving.answers[2].cached_tokens, 0);
}

TEST(SchedulerCache, OffMeansOff) {
  Serving serving({.num_pages = 40, .options = {.prefix_caching = false}});
  for (uint64_t id = 1; id <= 2; ++id) {
    serving.add(id, prompt_of(50), kShort);
    serving.run();
    serving.expect_right(id);
    EXPECT_EQ(serving.answers[id].cached_tokens, 0);
  }
}

// The keys of generated tokens come from decode steps. Batch-invariant mode offers those of prompts only.
TEST(SchedulerCache, GeneratedTokensAreSharedUnlessBatchInvariant) {
  for (const bool invariant : {false, true}) {
    Serving serving({.num_pages = 40, .options = {.batch_invariant = invariant}});
    serving.add(1, prompt_of(40), {.max_tokens = 60, .ignore_eos = true});
    serving.run();
    std::vector<int32_t> text = prompt_of(40);
    text.insert(text.end(), serving.answers[1].tokens.begin(), serving.answers[1].tokens.end());
    serving.add(2, text, kShort);
    serving.run();
    serving.expect_right(2);
    // All 99 stored tokens are known: 6 pages. Of the prompt of 40 only 2 are full.
    EXPECT_EQ(serving.answers[2].cached_tokens, invariant ? 32 : 96);
  }
}

// What a sliding window gave up stays findable until its pages are needed: a shared beginning is found although the
// request that computed it went far beyond it, in one chunk or in many.
TEST(SchedulerCache, SharedBeginningsWithSlidingWindows) {
  for (const int64_t chunk : {16, 64, 1000}) {
    Serving serving({.plan = plan_of({{}, {.window = 24}, {.num_kv_heads = 2, .window = 40}}),
                     .num_pages = 200,
                     .options = {.prefill_chunk_tokens = chunk}});
    const std::vector<int32_t> system = prompt_of(128, 9);
    for (uint64_t id = 1; id <= 3; ++id) {
      std::vector<int32_t> prompt = system;
      const std::vector<int32_t> question = prompt_of(100, id);
      prompt.insert(prompt.end(), question.begin(), question.end());
      serving.add(id, prompt, {.max_tokens = 40, .ignore_eos = true});
      serving.run();
      serving.expect_right(id);
      EXPECT_EQ(serving.answers[id].cached_tokens, id == 1 ? 0 : 128) << "chunk " << chunk;
    }
  }
}

// Pages that were freed and hold something new are not found under their old name.
TEST(SchedulerCache, ReusedPagesAreForgotten) {
  Serving serving({.num_pages = 12});
  for (uint64_t round = 0; round < 30; ++round) {
    const uint64_t id = round + 1;
    serving.add(id, prompt_of(20 + static_cast<int64_t>(round * 13 % 90), round % 3), kShort);
    serving.run();
    serving.expect_right(id);
  }
  EXPECT_GT(serving.scheduler.stats().cached_tokens_total, 0);
}

}  // namespace
}  // namespace quaver
