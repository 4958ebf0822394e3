// B06 and the derived cache scales.
#include "kv_cache/scales.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/e4m3.h"
#include "quaver/error.h"
#include "testing/random.h"

namespace quaver {
namespace {

// B06: refused by name and value.
TEST(Scales, CheckNamesTheScale) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<std::pair<float, std::string>> bad{{0.0F, "0"},
                                                       {-0.0F, "-0"},
                                                       {-1.0F, "-1"},
                                                       {infinity, "inf"},
                                                       {-infinity, "-inf"},
                                                       {std::nanf(""), "nan"},
                                                       {0x1p-149F, "1.4013e-45"},
                                                       {0x1p127F, "1.70141e+38"}};
  for (const auto& [value, text] : bad) {
    try {
      check_scale("layers.3.k_scale", value);
      FAIL() << text << " accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      EXPECT_EQ(std::string(error.what()),
                "layers.3.k_scale " + text + ": expected a positive finite scale between 2^-126 and 2^126");
    }
  }
  for (const float good : {0x1p-126F, 1e-3F, 1.0F, 448.0F, 0x1p126F}) EXPECT_NO_THROW(check_scale("k_scale", good));
}

TEST(Scales, SmallestPowerOfTwoThatCannotClip) {
  EXPECT_EQ(scale_for_bound(448.0), 1.0F);
  EXPECT_EQ(scale_for_bound(std::nextafter(448.0, 449.0)), 2.0F);
  EXPECT_EQ(scale_for_bound(224.0), 0.5F);
  EXPECT_EQ(scale_for_bound(225.0), 1.0F);
  EXPECT_EQ(scale_for_bound(1.0), 0x1p-8F);
  EXPECT_EQ(scale_for_bound(0.0), 1.0F);
  testing::Random random(1);
  for (int i = 0; i < 10000; ++i) {
    const double bound = std::exp2(200.0 * random.uniform() - 100.0);
    const float scale = scale_for_bound(bound);
    EXPECT_EQ(std::exp2(std::round(std::log2(scale))), scale);
    EXPECT_LE(bound / scale, 448.0);
    EXPECT_GT(bound / (scale / 2.0), 448.0);
    check_scale("derived", scale);
  }
  for (const double extreme : {1e-300, 3.4e38}) EXPECT_NO_THROW(check_scale("derived", scale_for_bound(extreme)));
  for (const double bad : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_THROW((void)scale_for_bound(bad), Error);
  }
}

TEST(Scales, DerivedFromTheNorm) {
  // D = 256: |v| <= 16 and 16 * 2^4 = 256; D = 512: 22.63 * 2^4 = 362.
  EXPECT_EQ(derived_v_scale(256), 0x1p-4F);
  EXPECT_EQ(derived_v_scale(512), 0x1p-4F);
  EXPECT_EQ(derived_v_scale(64), 0x1p-5F);
  std::vector<float> multipliers(256, 0.5F);
  EXPECT_EQ(derived_k_scale(multipliers), 0x1p-5F);
  multipliers[77] = -9.0F;  // 144 in all
  EXPECT_EQ(derived_k_scale(multipliers), 0x1p-1F);
  EXPECT_EQ(derived_k_scale(std::vector<float>(64, 0.0F)), 1.0F);
  multipliers[3] = std::nanf("");
  EXPECT_THROW((void)derived_k_scale(multipliers), Error);
  EXPECT_THROW((void)derived_k_scale({}), Error);
  EXPECT_THROW((void)derived_v_scale(0), Error);
}

// The worst rows a norm can give, all mass in one pair and RoPE turning it onto one dim, stay below saturation.
TEST(Scales, WorstCaseRowsDoNotClip) {
  constexpr int kDim = 256;
  std::vector<float> multipliers(kDim, 1.0F);
  multipliers[0] = multipliers[128] = 27.9F;
  const float inverse = 1.0F / derived_k_scale(multipliers);
  const double each = std::sqrt(kDim / 2.0) * 27.9;  // the normed pair (0, 128), before RoPE
  const auto turned = static_cast<float>(each * std::sqrt(2.0));
  EXPECT_LE(turned * inverse, 448.0F);
  EXPECT_NEAR(e4m3_decode(e4m3_quantize(turned, inverse)) / inverse / turned, 1.0, 1.0 / 16);
}

}  // namespace
}  // namespace quaver
