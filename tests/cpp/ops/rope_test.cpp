#include "ops/rope.h"

#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "quaver/error.h"

namespace quaver {
namespace {

constexpr RopeShape kLocal{.head_dim = 256, .rotary_pairs = 128, .theta = 1e4};
constexpr RopeShape kGlobal{.head_dim = 256, .rotary_pairs = 128, .theta = 1e6, .factor = 8.0};

RopeTable table_at(const RopeShape& shape, int32_t position) {
  RopeTable table;
  rope_table(rope_frequencies(shape), {&position, 1}, table);
  return table;
}

// B29: linear scaling on global layers only. Tolerance 2e-4: at position 4096 the FP32 frequencies of transformers are
// up to 1e-4 rad away from exact ones.
TEST(Rope, GemmaAnglesAtPosition4096) {
  const RopeTable local = table_at(kLocal, 4096);
  const RopeTable global = table_at(kGlobal, 4096);
  EXPECT_NEAR(local.cos[0], 0.803991, 1e-6);
  EXPECT_NEAR(local.sin[0], -0.594642, 1e-6);
  EXPECT_NEAR(global.cos[0], -0.996833, 1e-6);
  EXPECT_NEAR(global.sin[0], 0.079518, 1e-6);
  EXPECT_NEAR(local.cos[1], -0.643916, 2e-4);
  EXPECT_NEAR(global.cos[1], 0.587133, 2e-4);
  RopeShape unscaled = kGlobal;
  unscaled.factor = 1.0;
  EXPECT_NEAR(table_at(unscaled, 4096).cos[1], 0.302874, 2e-4);
}

// The numbers of torch 2.11 / transformers 5.17: 1 / theta ** (arange(0, D, 2) / D) in float32, times the position.
TEST(Rope, MatchesTransformersAtPosition100000) {
  const RopeTable local = table_at(kLocal, 100000);
  const RopeTable global = table_at({.head_dim = 256, .rotary_pairs = 128, .theta = 1e6}, 100000);
  struct Expected {
    size_t pair;
    double local_cos, local_sin, global_cos, global_sin;
  };
  for (const Expected& e : std::vector<Expected>{
           {0, -0.999361, 0.035749, -0.999361, 0.035749},
           {1, -0.996206, -0.087023, 0.665634, 0.746279},
           {2, -0.006800, 0.999977, -0.714836, 0.699292},
           {5, -0.414933, 0.909852, 0.323911, -0.946088},
           {17, -0.999638, 0.026899, -0.578858, -0.815429},
           {40, 0.999287, -0.037755, 0.084496, 0.996424},
           {64, 0.562379, 0.826880, 0.862323, -0.506359},
           {100, 0.917596, -0.397514, -0.464198, 0.885732},
           {127, -0.246916, -0.969037, 0.993802, 0.111167},
       }) {
    EXPECT_NEAR(local.cos[e.pair], e.local_cos, 1e-4) << e.pair;
    EXPECT_NEAR(local.sin[e.pair], e.local_sin, 1e-4) << e.pair;
    EXPECT_NEAR(global.cos[e.pair], e.global_cos, 1e-4) << e.pair;
    EXPECT_NEAR(global.sin[e.pair], e.global_sin, 1e-4) << e.pair;
  }
}

// Half split: pair j is (j, j + D/2), and a rotation is a product of complex numbers.
TEST(Rope, RotatesHalfSplitPairs) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  const RopeShape shape{.head_dim = 32, .rotary_pairs = 16, .theta = 1e4};
  const std::vector<int32_t> positions{0, 1, 17, 5000};
  RopeTable table;
  rope_table(rope_frequencies(shape), positions, table);
  std::vector<float> x(positions.size() * 3 * 32);
  for (float& value : x) value = normal(random);
  const std::vector<float> before = x;
  apply_rope(shape, table, 4, 3, x.data());
  for (size_t row = 0; row < 4; ++row) {
    for (size_t head = 0; head < 3; ++head) {
      const size_t base = (row * 3 + head) * 32;
      for (size_t j = 0; j < 16; ++j) {
        const double angle = positions[row] * std::pow(1e4, -2.0 * static_cast<double>(j) / 32);
        const double a = before[base + j];
        const double b = before[base + j + 16];
        ASSERT_NEAR(x[base + j], a * std::cos(angle) - b * std::sin(angle), 1e-3);
        ASSERT_NEAR(x[base + j + 16], a * std::sin(angle) + b * std::cos(angle), 1e-3);
      }
    }
  }
  EXPECT_EQ(std::vector<float>(x.begin(), x.begin() + 96), std::vector<float>(before.begin(), before.begin() + 96));
}

// Gemma 4's global layers: of D = 512 only dims 0 … 63 turn, paired with 256 … 319; frequencies are those of D = 512.
TEST(Rope, ProportionalRotatesLeadingPairsOnly) {
  const RopeShape shape{.head_dim = 512, .rotary_pairs = 64, .theta = 1e6};
  const std::vector<float> frequencies = rope_frequencies(shape);
  ASSERT_EQ(frequencies.size(), 64U);
  EXPECT_NEAR(frequencies[63], std::pow(1e6, -126.0 / 512), 1e-7);
  const RopeTable table = table_at(shape, 1000);
  std::vector<float> x(512, 1.0F);
  apply_rope(shape, table, 1, 1, x.data());
  for (size_t i = 0; i < 512; ++i) {
    const bool turned = i < 64 || (i >= 256 && i < 320);
    EXPECT_EQ(x[i] != 1.0F, turned) << i;
  }
}

TEST(Rope, RefusesShapesNoHeadHas) {
  EXPECT_THROW((void)rope_frequencies({.head_dim = 15, .rotary_pairs = 7}), Error);
  EXPECT_THROW((void)rope_frequencies({.head_dim = 16, .rotary_pairs = 9}), Error);
}

}  // namespace
}  // namespace quaver
