#include "ops/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "quaver/error.h"

namespace quaver {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

int32_t sample(const SamplingParams& params, const std::vector<float>& logits, int64_t position) {
  std::vector<TokenLogit> scratch{{.id = 99, .logit = 1e9F}};  // left by another row
  return sample_token(params, logits, position, scratch);
}

// How often each token comes up at positions 0 … draws-1.
std::vector<double> frequencies(const SamplingParams& params, const std::vector<float>& logits, int draws) {
  std::vector<double> counts(logits.size());
  for (int position = 0; position < draws; ++position) {
    counts[static_cast<size_t>(sample(params, logits, position))] += 1.0 / draws;
  }
  return counts;
}

std::vector<float> log_of(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

TEST(Sampling, ArgmaxTakesTheLowestOfEquals) {
  EXPECT_EQ(argmax(std::vector<float>{1, 3, 3, 2}), 1);
  EXPECT_EQ(argmax(std::vector<float>{kNan, 3, kNan, 4}), 3);
  EXPECT_EQ(argmax(std::vector<float>{-INFINITY, -INFINITY}), 0);
  EXPECT_THROW((void)argmax(std::vector<float>{kNan, kNan}), Error);
}

// B37: temperatures next to zero give the greedy token, never NaN.
TEST(Sampling, TinyTemperatureIsGreedy) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0.0F, 5.0F);
  std::vector<float> logits(1000);
  for (float& logit : logits) logit = normal(random);
  logits[77] = logits[500] = 40.0F;
  for (const double temperature : {0.0, 1e-12, 1e-8, 1e-4}) {
    for (int64_t position = 0; position < 20; ++position) {
      EXPECT_EQ(sample({.temperature = temperature, .seed = 9}, logits, position), 77);
    }
  }
}

TEST(Sampling, FrequenciesFollowTheSoftmax) {
  const std::vector<double> p{0.4, 0.3, 0.2, 0.1};
  constexpr int kDraws = 40000;  // standard error of a frequency <= 0.0025
  const std::vector<double> plain = frequencies({.temperature = 1.0, .seed = 1}, log_of(p), kDraws);
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(plain[i], p[i], 0.01) << i;
  // Temperature 2 takes square roots: weights 0.632, 0.548, 0.447, 0.316.
  const std::vector<double> warm = frequencies({.temperature = 2.0, .seed = 2}, log_of(p), kDraws);
  const std::vector<double> roots{0.3254, 0.2818, 0.2301, 0.1627};
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(warm[i], roots[i], 0.01) << i;
}

TEST(Sampling, TopKTopPMinP) {
  const std::vector<float> logits = log_of({0.1, 0.4, 0.2, 0.3});
  constexpr int kDraws = 20000;
  const auto top_k = frequencies({.temperature = 1.0, .top_k = 2, .seed = 4}, logits, kDraws);
  EXPECT_NEAR(top_k[1], 4.0 / 7, 0.015);
  EXPECT_NEAR(top_k[3], 3.0 / 7, 0.015);
  EXPECT_EQ(top_k[0] + top_k[2], 0.0);
  // 0.4 < 0.65 <= 0.4 + 0.3: two tokens.
  const auto top_p = frequencies({.temperature = 1.0, .top_p = 0.65, .seed = 5}, logits, kDraws);
  EXPECT_NEAR(top_p[1], 4.0 / 7, 0.015);
  EXPECT_EQ(top_p[0] + top_p[2], 0.0);
  // Within the top 3 (0.9 together) 0.4/0.9 = 0.44 is short of 0.5, so top-p keeps two.
  const auto both = frequencies({.temperature = 1.0, .top_k = 3, .top_p = 0.5, .seed = 6}, logits, kDraws);
  EXPECT_NEAR(both[1], 4.0 / 7, 0.015);
  EXPECT_EQ(both[0] + both[2], 0.0);
  // min_p 0.5: at least 0.2.
  const auto min_p = frequencies({.temperature = 1.0, .min_p = 0.49, .seed = 7}, logits, kDraws);
  EXPECT_NEAR(min_p[2], 2.0 / 9, 0.015);
  EXPECT_EQ(min_p[0], 0.0);
  // The smallest nucleus is one token.
  EXPECT_NEAR(frequencies({.temperature = 1.0, .top_p = 1e-9}, logits, 100)[1], 1.0, 1e-12);
}

// B37: masked and infinite logits. -inf is never drawn whatever the temperature; when nothing is left, an error says
// so.
TEST(Sampling, MaskedLogits) {
  const std::vector<float> logits{-INFINITY, 1.0F, kNan, 0.5F};
  for (const double temperature : {0.0, 1.0, 1e300}) {
    for (const int top_k : {0, 3}) {
      for (int position = 0; position < 50; ++position) {
        const int32_t token =
            sample({.temperature = temperature, .top_k = top_k, .top_p = top_k > 0 ? 0.999 : 1.0}, logits, position);
        EXPECT_TRUE(token == 1 || token == 3) << token;
      }
    }
  }
  EXPECT_EQ(sample({.temperature = 1.0}, {0.0F, INFINITY, 3.0F}, 5), 1);
  EXPECT_THROW((void)sample({.temperature = 1.0}, {-INFINITY, kNan}, 0), Error);
  EXPECT_THROW((void)sample({}, {kNan, kNan}, 0), Error);
}

// Draws over several chunks of the vocabulary: a chunk of zeros lies between, the last is not full.
TEST(Sampling, DrawsFromALargeVocabulary) {
  std::vector<float> logits(5003, -INFINITY);
  logits[7] = std::log(0.25F);
  logits[1023] = std::log(0.125F);
  logits[3500] = std::log(0.5F);
  logits[5002] = std::log(0.125F);
  const std::vector<double> seen = frequencies({.temperature = 1.0, .seed = 3}, logits, 20000);
  EXPECT_NEAR(seen[7], 0.25, 0.01);
  EXPECT_NEAR(seen[1023], 0.125, 0.01);
  EXPECT_NEAR(seen[3500], 0.5, 0.01);
  EXPECT_NEAR(seen[5002], 0.125, 0.01);
  // min-p relative to the best: 0.26 of 0.5 leaves two.
  EXPECT_EQ(frequencies({.temperature = 1.0, .min_p = 0.26, .seed = 3}, logits, 1000)[5002], 0.0);
}

TEST(Sampling, BestLogits) {
  std::mt19937 random(4);
  std::vector<float> logits(1000);
  for (float& logit : logits) logit = static_cast<float>(random() % 300);  // many equal ones
  logits[500] = kNan;
  std::vector<int32_t> ids(1000);
  std::iota(ids.begin(), ids.end(), 0);
  std::erase(ids, 500);
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  std::vector<TokenLogit> best{{.id = 7, .logit = 1e9F}};
  for (const int64_t count : {0, 1, 2, 7, 64, 999, 1000, 5000}) {
    best_logits(logits, count, best);
    ASSERT_EQ(std::ssize(best), std::min<int64_t>(count, 999));
    for (size_t i = 0; i < best.size(); ++i) {
      EXPECT_EQ(best[i].id, ids[i]) << count << " " << i;
      EXPECT_EQ(best[i].logit, logits[static_cast<size_t>(ids[i])]);
    }
  }
}

// top-p over a vocabulary larger than the first sorted block, against a full sort.
TEST(Sampling, TopPOfAFlatVocabulary) {
  constexpr size_t kVocab = 1000;
  std::vector<float> logits(kVocab);
  for (size_t i = 0; i < kVocab; ++i) logits[i] = 1e-6F * static_cast<float>((i * 2663) % kVocab);
  std::set<int32_t> drawn;
  for (int position = 0; position < 6000; ++position) {
    drawn.insert(sample({.temperature = 1.0, .top_p = 0.5, .seed = 8}, logits, position));
  }
  for (const int32_t id : drawn) EXPECT_GT((static_cast<size_t>(id) * 2663) % kVocab, kVocab / 2 - 20);
  EXPECT_GT(drawn.size(), 490U);
  EXPECT_LT(drawn.size(), 520U);
}

// top-p where weights span many orders of magnitude, against a sort in double: nothing outside the nucleus is drawn,
// and its rare last members are.
TEST(Sampling, TopPOfASpreadVocabulary) {
  constexpr size_t kVocab = 3003;
  std::mt19937 random(12);
  std::normal_distribution<float> normal(0.0F, 2.0F);
  std::vector<std::pair<double, int32_t>> weights;
  std::vector<float> logits(kVocab);
  for (size_t i = 0; i < kVocab; ++i) {
    logits[i] = normal(random);
    weights.emplace_back(std::exp(logits[i] / 1.5), static_cast<int32_t>(i));
  }
  std::sort(weights.rbegin(), weights.rend());
  double total = 0;
  for (const auto& [weight, id] : weights) total += weight;
  std::set<int32_t> nucleus;
  double sum = 0;
  for (size_t i = 0; sum < 0.7 * total; ++i) {
    sum += weights[i].first;
    nucleus.insert(weights[i].second);
  }
  std::set<int32_t> drawn;
  for (int position = 0; position < 20000; ++position) {
    drawn.insert(sample({.temperature = 1.5, .top_p = 0.7, .seed = 21}, logits, position));
  }
  EXPECT_EQ(drawn, nucleus);
}

// B42: the draw depends on seed and position, and on nothing else.
TEST(Sampling, DrawIsAFunctionOfSeedAndPosition) {
  const std::vector<float> logits = log_of({0.25, 0.25, 0.25, 0.25});
  std::map<uint64_t, std::vector<int32_t>> streams;
  for (const uint64_t seed : {0U, 1U, 42U, 43U}) {
    for (int64_t position = 0; position < 64; ++position) {
      streams[seed].push_back(sample({.temperature = 0.8, .seed = seed}, logits, position));
    }
  }
  for (int64_t position = 63; position >= 0; --position) {  // another order, the same draws
    EXPECT_EQ(sample({.temperature = 0.8, .seed = 42}, logits, position), streams[42][static_cast<size_t>(position)]);
  }
  EXPECT_NE(streams[42], streams[43]);
  EXPECT_NE(streams[0], streams[1]);
}

TEST(Sampling, UniformDrawIsUniform) {
  double mean = 0;
  double product = 0;
  double previous = uniform_draw(5, -1);
  constexpr int kDraws = 100000;
  for (int i = 0; i < kDraws; ++i) {
    const double u = uniform_draw(5, i);
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    mean += u / kDraws;
    product += (u - 0.5) * (previous - 0.5) / kDraws;
    previous = u;
  }
  EXPECT_NEAR(mean, 0.5, 0.004);
  EXPECT_NEAR(product, 0.0, 0.002);
}

// B37: values out of range are refused by name.
TEST(Sampling, RefusesParametersOutOfRange) {
  const auto message = [](const SamplingParams& params) {
    try {
      check_sampling_params(params);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(message({}), "");
  EXPECT_EQ(message({.temperature = -1}), "temperature -1: expected a finite number >= 0");
  EXPECT_NE(message({.temperature = kNan}), "");
  EXPECT_EQ(message({.temperature = 999999}), "");
  EXPECT_EQ(message({.top_k = -5}), "top_k -5: expected >= 1, or 0 for all tokens");
  EXPECT_EQ(message({.top_p = 0}), "top_p 0: expected in (0, 1]");
  EXPECT_NE(message({.top_p = 1.5}), "");
  EXPECT_NE(message({.top_p = kNan}), "");
  EXPECT_NE(message({.min_p = -0.1}), "");
  EXPECT_NE(message({.repetition_penalty = 0}), "");
  EXPECT_NE(message({.presence_penalty = kNan}), "");
  EXPECT_NE(message({.frequency_penalty = 3}), "");
}

// Against sums in double, over sizes with and without a last part of eight.
TEST(Sampling, LogSumExp) {
  std::mt19937 random(9);
  std::normal_distribution<float> normal(0.0F, 8.0F);
  for (const size_t size : {1U, 7U, 8U, 9U, 1023U, 262145U}) {
    std::vector<float> logits(size);
    for (float& logit : logits) logit = normal(random);
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
    EXPECT_NEAR(log_sum_exp(logits), std::log(sum), 3e-7) << size;
  }
  EXPECT_TRUE(std::isnan(log_sum_exp(std::vector<float>{1, INFINITY})));
}

TEST(Sampling, LogProbability) {
  EXPECT_NEAR(log_probability(std::vector<float>{0, 0, 0, 0}, 2), -std::log(4.0), 1e-12);
  EXPECT_NEAR(log_probability(std::vector<float>{1000, 0}, 1), -1000.0, 1e-9);
  EXPECT_TRUE(std::isnan(log_probability(std::vector<float>{1, kNan}, 0)));
  EXPECT_THROW((void)log_probability(std::vector<float>{1}, 1), Error);
}

}  // namespace
}  // namespace quaver
