#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "testing/expect_error.h"

namespace quaver {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Step::SlotStart start_of(int32_t slot, const RequestParams& params, std::vector<int32_t> tokens, int64_t prompt_len) {
  Step::SlotStart start;
  start.slot = slot;
  start.params = params;
  start.tokens = std::move(tokens);
  start.prompt_len = prompt_len;
  return start;
}

std::vector<float> random_logits(size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, 3.0F);
  std::vector<float> logits(size);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

// The greedy token after one change of the logits says what the change was.
class OneDraw {
 public:
  OneDraw(const RequestParams& params, std::vector<int32_t> tokens, int64_t prompt_len,
          std::vector<int32_t> stop_ids = {}) {
    Step::SlotStart start = start_of(0, params, std::move(tokens), prompt_len);
    start.stop_token_ids = std::move(stop_ids);
    sampler_.start(start);
  }
  int32_t operator()(std::vector<float> logits) {
    const std::vector<float> before = logits;
    const int32_t token = sampler_.draw(0, logits, scratch_).token;
    EXPECT_EQ(logits, before);
    return token;
  }

 private:
  Sampler sampler_;
  Sampler::Scratch scratch_;
};

TEST(Sampler, RepetitionPenaltyConcernsPromptAndGeneratedTokens) {
  const RequestParams params{.sampling = {.repetition_penalty = 2.0}};
  // Token 0 is in the prompt, 1 was generated: 4 / 2 and -1 * 2, each once although 0 comes twice.
  EXPECT_EQ(OneDraw(params, {0, 0, 1}, 2)({4.0F, 4.0F, 2.1F, 0.0F}), 2);
  EXPECT_EQ(OneDraw(params, {0, 0, 1}, 2)({4.0F, 4.0F, 1.9F, 0.0F}), 0);
  EXPECT_EQ(OneDraw(params, {0, 0, 1}, 2)({-1.0F, -1.0F, -1.9F, -9.0F}), 2);
  EXPECT_EQ(OneDraw(params, {0, 0, 1}, 2)({-1.0F, -1.0F, -2.1F, -9.0F}), 0);
}

TEST(Sampler, PresenceAndFrequencyPenaltiesConcernGeneratedTokens) {
  const std::vector<int32_t> tokens{3, 1, 2, 2};  // prompt 3; generated 1 once, 2 twice
  const RequestParams presence{.sampling = {.presence_penalty = 1.0}};
  EXPECT_EQ(OneDraw(presence, tokens, 1)({0.0F, 2.1F, 2.0F, 1.0F}), 1);
  EXPECT_EQ(OneDraw(presence, tokens, 1)({0.0F, 1.9F, 2.0F, 1.05F}), 3);  // 2 is penalised once
  const RequestParams frequency{.sampling = {.frequency_penalty = 1.0}};
  EXPECT_EQ(OneDraw(frequency, tokens, 1)({0.0F, 2.0F, 2.9F, 0.5F}), 1);  // 1.0 against 0.9
  EXPECT_EQ(OneDraw(frequency, tokens, 1)({0.0F, 2.0F, 3.1F, 0.5F}), 2);
}

// Counts grow with every drawn token: a greedy loop over constant logits with a frequency penalty of 1.
TEST(Sampler, CountsGrowTokenByToken) {
  OneDraw draw({.sampling = {.frequency_penalty = 1.0}}, {2}, 1);
  const std::vector<float> logits{3.0F, 2.5F, 0.2F};
  const std::vector<int32_t> expected{0, 1, 0, 1, 0, 1, 2};  // 3, 2.5, 2, 1.5, 1, 0.5, then 0.2 against 0
  for (const int32_t token : expected) EXPECT_EQ(draw(logits), token);
}

TEST(Sampler, BiasComesBeforePenalties) {
  // (1 + 3) / 2 = 2 is below 2.1; bias after the penalty would give 3.5.
  const RequestParams params{.sampling = {.repetition_penalty = 2.0}, .logit_bias = {{0, 3.0F}}};
  EXPECT_EQ(OneDraw(params, {0}, 1)({1.0F, 2.1F}), 1);
  EXPECT_EQ(OneDraw({.logit_bias = {{1, -100.0F}}}, {0}, 1)({1.0F, 50.0F}), 0);
  EXPECT_EQ(OneDraw({.logit_bias = {{1, 100.0F}}}, {0}, 1)({60.0F, -30.0F}), 1);
}

TEST(Sampler, MinTokensForbidsStopIds) {
  OneDraw draw({.min_tokens = 2}, {3}, 1, {1, 2, 99});  // an eos id outside the vocabulary does no harm
  const std::vector<float> logits{0.0F, 5.0F, 4.0F, 1.0F};
  EXPECT_EQ(draw(logits), 3);
  EXPECT_EQ(draw(logits), 3);
  EXPECT_EQ(draw(logits), 1);
  // Tokens from before a preemption count.
  EXPECT_EQ(OneDraw({.min_tokens = 2}, {3, 3, 3}, 1, {1, 2})(logits), 1);
  // A bias cannot bring a forbidden id back.
  EXPECT_EQ(OneDraw({.min_tokens = 1, .logit_bias = {{1, 100.0F}}}, {3}, 1, {1})(logits), 2);
}

// B43: values are those of the logits as the model gave them, and a token's own value is bit-equal in `top`.
TEST(Sampler, LogprobsAreOfTheRawLogits) {
  const std::vector<float> logits = random_logits(500, 1);
  const int32_t best = argmax(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  Sampler sampler;
  Sampler::Scratch scratch;
  sampler.start(start_of(
      0, {.sampling = {.temperature = 1.7, .seed = 3}, .logit_bias = {{best, -100.0F}, {7, 100.0F}}, .logprobs = 5},
      {1, 2}, 2));
  std::vector<float> row = logits;
  const Sampler::Drawn drawn = sampler.draw(0, row, scratch);
  EXPECT_EQ(drawn.token, 7);
  ASSERT_TRUE(drawn.logprobs.has_value());
  EXPECT_EQ(drawn.logprobs->token, 7);
  EXPECT_NEAR(drawn.logprobs->logprob, logits[7] - std::log(sum), 1e-5);
  EXPECT_EQ(drawn.logprobs->rank,
            1 + std::count_if(logits.begin(), logits.end(), [&](float x) { return x > logits[7]; }));
  ASSERT_EQ(drawn.logprobs->top.size(), 5U);
  EXPECT_EQ(drawn.logprobs->top[0].first, best);
  EXPECT_NEAR(drawn.logprobs->top[0].second, logits[static_cast<size_t>(best)] - std::log(sum), 1e-5);

  const TokenLogprobs own = token_logprobs(logits, best, 1);
  EXPECT_EQ(own.rank, 1);
  EXPECT_EQ(own.logprob, own.top[0].second);  // lm-eval's greedy test is exact equality
  EXPECT_TRUE(token_logprobs(logits, 7, 0).top.empty());
  EXPECT_EQ(token_logprobs(std::vector<float>{1, 1, 0}, 1, 2).rank, 1);  // equal ones share a rank
  EXPECT_EQ(token_logprobs(std::vector<float>{1, 1, 0}, 1, 20).top.size(), 3U);
}

// B40, B42: a slot's text depends on its own request only: not on the slot, nor on who had it before, nor on a restart
// in the middle.
TEST(Sampler, SlotsAreIndependentAndRestartable) {
  const RequestParams params{
      .sampling = {.temperature = 0.9, .top_k = 40, .repetition_penalty = 1.3, .frequency_penalty = 0.4, .seed = 42}};
  const auto logits_at = [](size_t position) { return random_logits(200, static_cast<unsigned>(position) + 100); };
  Sampler::Scratch scratch;
  const auto continue_in = [&](Sampler& sampler, int32_t slot, std::vector<int32_t> tokens) {
    while (tokens.size() < 24) {
      std::vector<float> logits = logits_at(tokens.size());
      tokens.push_back(sampler.draw(slot, logits, scratch).token);
      EXPECT_EQ(sampler.last_token(slot), tokens.back());
    }
    return tokens;
  };
  Sampler sampler;
  sampler.start(start_of(0, params, {5, 6, 5, 9}, 4));
  const std::vector<int32_t> expected = continue_in(sampler, 0, {5, 6, 5, 9});

  sampler.start(start_of(3, {.sampling = {.temperature = 1.0, .repetition_penalty = 9.0}}, {1, 2, 3}, 3));
  (void)continue_in(sampler, 3, {1, 2, 3});
  sampler.start(start_of(3, params, {5, 6, 5, 9}, 4));
  EXPECT_EQ(sampler.last_token(3), 9);
  EXPECT_EQ(continue_in(sampler, 3, {5, 6, 5, 9}), expected);

  const std::vector<int32_t> half(expected.begin(), expected.begin() + 14);
  sampler.start(start_of(1, params, half, 4));
  EXPECT_EQ(continue_in(sampler, 1, half), expected);
}

// Logits that are not numbers are an error of that draw; the slot stays as it was.
TEST(Sampler, LogitsThatAreNotNumbers) {
  Sampler sampler;
  Sampler::Scratch scratch;
  sampler.start(start_of(0, {.logprobs = 1}, {4}, 1));
  std::vector<float> nothing(8, kNan);
  testing::expect_error([&] { (void)sampler.draw(0, nothing, scratch); }, ErrorKind::kInternal, {"logits", "NaN"});
  std::vector<float> one_nan{1.0F, kNan, 2.0F};
  testing::expect_error([&] { (void)sampler.draw(0, one_nan, scratch); }, ErrorKind::kInternal, {"finite"});
  EXPECT_EQ(sampler.last_token(0), 4);
  testing::expect_error([&] { (void)token_logprobs(one_nan, 3, 0); }, ErrorKind::kInvalidArgument, {"token id 3"});
  testing::expect_error([&] { (void)sampler.draw(1, one_nan, scratch); }, ErrorKind::kInvalidArgument, {"slot 1"});
  testing::expect_error([&] { (void)sampler.last_token(-1); }, ErrorKind::kInvalidArgument, {"slot -1"});
}

}  // namespace
}  // namespace quaver
