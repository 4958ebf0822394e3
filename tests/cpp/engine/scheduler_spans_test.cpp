// Image spans through the scheduler: no chunk ends inside one, and cached keys of one are those of the same image in
// the same place. The stub model checks every key that is read and every row that is run.
#include <gtest/gtest.h>

#include "serving.h"

namespace quaver {
namespace {

using testing::plan_of;
using testing::prompt_of;
using testing::row_sizes;
using testing::Serving;

using Sizes = std::vector<int32_t>;

const RequestParams kShort{.max_tokens = 3, .ignore_eos = true};

/// Sizes of a request's chunks, alone in the engine.
Sizes chunks(int64_t prompt_len, int64_t chunk, const std::vector<TokenSpan>& spans) {
  Serving serving({.num_pages = 40, .options = {.prefill_chunk_tokens = chunk}, .ahead = 0});
  Sizes sizes;
  serving.on_step = [&](const Step& step) {
    if (step.feedback.empty()) sizes.push_back(row_sizes(step).at(0));
  };
  serving.add(1, prompt_of(prompt_len), {.max_tokens = 1, .ignore_eos = true}, "", spans);
  serving.run();
  serving.expect_right(1);
  return sizes;
}

TEST(SchedulerSpans, NoChunkEndsInsideASpan) {
  EXPECT_EQ(chunks(40, 16, {}), (Sizes{16, 16, 8}));
  EXPECT_EQ(chunks(40, 16, {{10, 16}}), (Sizes{16, 16, 8}));   // ends where a chunk does
  EXPECT_EQ(chunks(40, 16, {{10, 17}}), (Sizes{10, 16, 14}));  // one token too long
  EXPECT_EQ(chunks(40, 16, {{15, 16}, {16, 17}}), (Sizes{16, 16, 8}));
  EXPECT_EQ(chunks(40, 16, {{0, 16}, {16, 32}, {32, 40}}), (Sizes{16, 16, 8}));
  EXPECT_EQ(chunks(40, 16, {{1, 17}, {17, 33}, {33, 40}}), (Sizes{1, 16, 16, 7}));
  EXPECT_EQ(chunks(40, 16, {{3, 5}, {6, 9}, {24, 40}}), (Sizes{16, 8, 16}));
  EXPECT_EQ(chunks(20, 1, {{7, 8}}), Sizes(20, 1));
}

// An image that is larger than what older prompts leave of the budget waits for the next step, and gets on in it.
TEST(SchedulerSpans, AnImageWaitsForRoomInTheBudget) {
  Serving serving({.num_pages = 40, .options = {.max_num_batched_tokens = 32}});
  serving.add(1, prompt_of(20, 1), kShort);
  serving.add(2, prompt_of(36, 2), kShort, "", {{0, 30}});
  serving.add(3, prompt_of(5, 3), kShort);
  EXPECT_EQ(row_sizes(*serving.step()), (Sizes{20, 5}));
  EXPECT_EQ(row_sizes(*serving.step()), (Sizes{1, 1, 32}));
  serving.run();
  for (uint64_t id = 1; id <= 3; ++id) serving.expect_right(id);
}

// Two running prompts whose images do not fit a step together: the older goes first in every step.
TEST(SchedulerSpans, TheOldestImageGoesFirst) {
  Serving serving({.num_pages = 60, .options = {.max_num_batched_tokens = 32}});
  const std::vector<TokenSpan> images{{0, 20}, {20, 40}, {40, 60}};
  serving.add(1, prompt_of(61, 1), kShort, "", images);
  serving.add(2, prompt_of(61, 2), kShort, "", images);
  EXPECT_EQ(row_sizes(*serving.step()), (Sizes{20}));
  EXPECT_EQ(row_sizes(*serving.step()), (Sizes{20}));
  EXPECT_EQ(row_sizes(*serving.step()), (Sizes{21}));
  EXPECT_EQ(row_sizes(*serving.step()), (Sizes{1, 20}));
  serving.run();
  for (uint64_t id = 1; id <= 2; ++id) serving.expect_right(id);
}

struct Prompt {
  std::vector<int32_t> tokens;
  std::vector<TokenSpan> spans;
};

/// Tokens of the second prompt that are found after the first was served.
int64_t cached(const Prompt& first, const Prompt& second) {
  Serving serving({.plan = plan_of({{}, {.window = 200}}), .num_pages = 100});
  serving.add(1, first.tokens, kShort, "", first.spans);
  serving.run();
  serving.add(2, second.tokens, kShort, "", second.spans);
  serving.run();
  for (uint64_t id = 1; id <= 2; ++id) serving.expect_right(id);
  return serving.answers[2].cached_tokens;
}

std::vector<int32_t> changed(std::vector<int32_t> tokens, size_t at) {
  tokens[at] = static_cast<int>((tokens[at] + 1) % testing::kStubVocab);
  return tokens;
}

TEST(SchedulerSpans, PagesOfAnImageAreFoundAgain) {
  const std::vector<int32_t> tokens = prompt_of(70);
  for (const std::vector<TokenSpan>& spans : std::vector<std::vector<TokenSpan>>{
           {{0, 5}}, {{3, 16}}, {{16, 32}}, {{3, 17}}, {{15, 49}}, {{0, 64}}, {{1, 2}, {2, 3}, {40, 64}}, {{65, 70}}}) {
    EXPECT_EQ(cached({tokens, spans}, {tokens, spans}), 64);
  }
}

// A cached prefix never ends inside an image: the rest of it could not be computed alone.
TEST(SchedulerSpans, NoPrefixEndsInsideAnImage) {
  const std::vector<int32_t> tokens = prompt_of(70);
  EXPECT_EQ(cached({tokens, {{50, 65}}}, {tokens, {{50, 65}}}), 48);
  EXPECT_EQ(cached({tokens, {{10, 70}}}, {tokens, {{10, 70}}}), 0);
  EXPECT_EQ(cached({tokens, {{16, 70}}}, {tokens, {{16, 70}}}), 16);
}

// Keys of an image's tokens depend on all of it: the same tokens as text, or with other spans, are something else.
TEST(SchedulerSpans, TextAndImagesNeverSharePages) {
  const std::vector<int32_t> tokens = prompt_of(70);
  EXPECT_EQ(cached({tokens, {}}, {tokens, {{0, 5}}}), 0);
  EXPECT_EQ(cached({tokens, {{0, 5}}}, {tokens, {}}), 0);
  EXPECT_EQ(cached({tokens, {{20, 25}}}, {tokens, {}}), 16);
  EXPECT_EQ(cached({tokens, {}}, {tokens, {{32, 33}}}), 32);
  EXPECT_EQ(cached({tokens, {{20, 25}}}, {tokens, {{20, 26}}}), 16);
  EXPECT_EQ(cached({tokens, {{20, 25}}}, {tokens, {{21, 25}}}), 16);
  EXPECT_EQ(cached({tokens, {{20, 24}}}, {tokens, {{20, 22}, {22, 24}}}), 16);
  EXPECT_EQ(cached({tokens, {{20, 40}}}, {tokens, {{20, 41}}}), 16);
}

// The page in which an image begins holds keys that depend on its end, pages further on.
TEST(SchedulerSpans, AnotherEndOfTheImageIsAnotherImage) {
  const std::vector<int32_t> tokens = prompt_of(70);
  const std::vector<TokenSpan> spans{{20, 60}};
  EXPECT_EQ(cached({tokens, spans}, {changed(tokens, 59), spans}), 16);
  EXPECT_EQ(cached({tokens, spans}, {changed(tokens, 20), spans}), 16);
  EXPECT_EQ(cached({tokens, spans}, {changed(tokens, 60), spans}), 16);  // the next boundary, 64, is behind the change
  EXPECT_EQ(cached({tokens, spans}, {changed(tokens, 64), spans}), 64);
}

}  // namespace
}  // namespace quaver
