#include "ops/token_weights.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "ops/sampling.h"
#include "ops/softcap.h"

namespace quaver {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Against 2^x in double: a relative error below 3e-7, and less than a unit cut off.
TEST(TokenWeights, UnitsArePowersOfTwo) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0F, 12.0F);
  for (const float scale : {1.44269504F, 0.5F, 14.4F, 0.0F}) {
    for (int i = 0; i < 20000; ++i) {
      const float best = normal(random);
      const float logit = best - std::abs(normal(random)) / std::max(scale, 0.1F);
      const int32_t reference = weight_exponent(best, scale);
      EXPECT_NEAR(reference, double{best} * double{scale}, 0.5 + 1e-4);
      const double exact = std::exp2(double{logit} * double{scale} - reference + kWeightBits);
      const auto units = static_cast<double>(weight_units(logit, scale, reference));
      EXPECT_NEAR(units, exact, 3e-7 * exact + 1.0) << logit << " " << scale;
    }
  }
}

TEST(TokenWeights, WhatHasNoWeight) {
  for (const float logit : {kNan, -kNan, -kInfinity, kInfinity, -3e6F}) {
    EXPECT_EQ(weight_units(logit, kLog2e, weight_exponent(2.0F, kLog2e)), 0U) << logit;
  }
  for (const float logit : {kNan, kInfinity, -kInfinity, 3e6F, -3e6F}) EXPECT_FALSE(has_exponent(logit, kLog2e));
  EXPECT_TRUE(has_exponent(2.9e6F, kLog2e));
  EXPECT_EQ(weight_exponent(-kInfinity, kLog2e), kNoExponent);
  EXPECT_EQ(chunk_units(1000, kNoExponent, 3), 0U);
  EXPECT_EQ(chunk_units(1000, 0, 3), 125U);
}

TEST(TokenWeights, OrderIsThatOfLogitsThenIds) {
  const std::vector<float> ascending{-kInfinity, -3e38F, -1.0F, -1e-45F, 0.0F, 1e-45F, 1.0F, 3e38F, kInfinity};
  for (size_t i = 0; i + 1 < ascending.size(); ++i) {
    EXPECT_LT(order_of(ascending[i], 0), order_of(ascending[i + 1], 2000000000));
    EXPECT_EQ(logit_of(order_of(ascending[i])), ascending[i]);
  }
  EXPECT_GT(order_of(1.0F, 7), order_of(1.0F, 8));
  EXPECT_EQ(order_of(-0.0F, 7), order_of(0.0F, 7));
  EXPECT_EQ(id_of(order_of(-2.5F, 262143)), 262143);
}

TEST(TokenWeights, LeastLogitIsTheLeastWithinReach) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal(0.0F, 20.0F);
  for (int i = 0; i < 10000; ++i) {
    const float best = normal(random);
    const double reach = std::abs(double{normal(random)});
    const float least = least_logit(best, reach);
    EXPECT_GE(double{least}, double{best} - reach);
    EXPECT_LT(double{std::nextafter(least, -kInfinity)}, double{best} - reach);
  }
  EXPECT_EQ(least_logit(1.5F, 0.0), 1.5F);
  EXPECT_EQ(least_logit(1.5F, 1e300), std::numeric_limits<float>::lowest());
}

TEST(TokenWeights, DrawnUnitsAndShares) {
  EXPECT_EQ(drawn_unit(0.0, 5), 0U);
  EXPECT_EQ(drawn_unit(0.999, 5), 4U);
  EXPECT_EQ(drawn_unit(1.0 - 0x1p-53, uint64_t{1} << 62U), (uint64_t{1} << 62U) - 512);  // rounded to a double
  EXPECT_EQ(drawn_unit(1.0 - 0x1p-53, (uint64_t{1} << 62U) + 1), (uint64_t{1} << 62U) - 512);
  EXPECT_EQ(units_of_top_p(0.5, 7), 4U);
  EXPECT_EQ(units_of_top_p(1e-300, 7), 1U);
}

// Chi-square of 60,000 draws over 3,000 tokens, in 60 groups: 59 degrees of freedom, 99.9 % below 99.
TEST(TokenWeights, DrawsFollowTheWeights) {
  constexpr size_t kVocab = 3000;
  constexpr size_t kGroups = 60;
  constexpr int kDraws = 60000;
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0.0F, 1.0F);
  std::vector<float> logits(kVocab);
  for (float& logit : logits) logit = normal(random);
  std::vector<double> expected(kGroups);
  double total = 0.0;
  for (const float logit : logits) total += std::exp(double{logit} / 0.8);
  for (size_t id = 0; id < kVocab; ++id) expected[id % kGroups] += kDraws * std::exp(double{logits[id]} / 0.8) / total;
  std::vector<double> seen(kGroups);
  std::vector<TokenLogit> scratch;
  for (int64_t position = 0; position < kDraws; ++position) {
    seen[static_cast<size_t>(sample_token({.temperature = 0.8, .seed = 11}, logits, position, scratch)) % kGroups] += 1;
  }
  double chi_square = 0.0;
  for (size_t i = 0; i < kGroups; ++i) chi_square += (seen[i] - expected[i]) * (seen[i] - expected[i]) / expected[i];
  EXPECT_LT(chi_square, 99.0);
}

TEST(Softcap, IsTanh) {
  for (const double cap : {30.0, 50.0, 0.5}) {
    const Softcap softcap = make_softcap(cap);
    for (float x = -400.0F; x < 400.0F; x += 0.0371F) {
      const double exact = cap * std::tanh(double{x} / cap);
      EXPECT_NEAR(softcap(x), exact, 6e-7 * std::abs(exact)) << x;
    }
    for (const float x : {1e-30F, -1e-6F, 3e38F, -kInfinity, kInfinity}) {
      const double exact = cap * std::tanh(double{x} / cap);
      EXPECT_NEAR(softcap(x), exact, 6e-7 * std::abs(exact)) << x;
    }
    EXPECT_TRUE(std::isnan(softcap(kNan)));
  }
  EXPECT_EQ(make_softcap(0.0)(123.5F), 123.5F);
}

}  // namespace
}  // namespace quaver
