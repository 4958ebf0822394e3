// B07: E4M3 conversion edge cases. Expected codes were computed independently of our codec.
#include "core/e4m3.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace quaver {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

/// Value of a code straight from the format's definition, in double.
double reference_value(int code) {
  const int exponent = (code >> 3) & 15;
  const int mantissa = code & 7;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

/// Nearest code by exhaustive search; ties go to the even code. Saturates.
int reference_code(double value) {
  const int sign = std::signbit(value) ? 0x80 : 0;
  const double magnitude = std::fabs(value);
  int best = 0;
  double best_distance = kInf;
  for (int code = 0; code < 0x7F; ++code) {
    const double distance = std::fabs(reference_value(code) - magnitude);
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) {
      best = code;
      best_distance = distance;
    }
  }
  return sign | best;
}

TEST(E4M3, DecodesEveryCode) {
  for (int code = 0; code < 256; ++code) {
    const float value = e4m3_decode(static_cast<uint8_t>(code));
    if ((code & 0x7F) == 0x7F) {
      EXPECT_TRUE(std::isnan(value)) << code;  // never 480
    } else {
      EXPECT_EQ(value, reference_value(code)) << code;
      EXPECT_EQ(std::signbit(value), (code & 0x80) != 0) << code;
    }
  }
}

TEST(E4M3, EncodesEveryDecodedValueToItself) {
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7F) == 0x7F) continue;
    EXPECT_EQ(e4m3_encode(e4m3_decode(static_cast<uint8_t>(code))), code);
  }
}

TEST(E4M3, EdgeCases) {
  const std::pair<float, int> cases[] = {
      {448.0F, 0x7E},    {449.0F, 0x7E},         {464.0F, 0x7E},    {465.0F, 0x7E},     {1e9F, 0x7E},
      {kInf, 0x7E},      {-kInf, 0xFE},          {-0.0F, 0x80},     {0x1p-10F, 0x00},   {0x1.0007p-10F, 0x01},
      {0x1.8p-9F, 0x02}, {7.5F * 0x1p-9F, 0x08}, {1.0625F, 0x38},   {1.0625001F, 0x39}, {1.1875F, 0x3A},
      {248.0F, 0x78},    {232.0F, 0x76},         {0x1p-149F, 0x00}, {-1e-30F, 0x80}};
  for (const auto& [value, code] : cases) EXPECT_EQ(e4m3_encode(value), code) << value;
  EXPECT_EQ(e4m3_encode(std::numeric_limits<float>::quiet_NaN()), 0x7F);
  EXPECT_EQ(e4m3_encode(-std::numeric_limits<float>::quiet_NaN()), 0x7F);
}

TEST(E4M3, AgreesWithExhaustiveSearchOnRandomFloats) {
  std::mt19937 generator(7);
  std::uniform_real_distribution<float> exponent(-14.0F, 10.0F);
  std::uniform_real_distribution<float> mantissa(-1.0F, 1.0F);
  for (int i = 0; i < 200000; ++i) {
    const float value = mantissa(generator) * std::exp2(exponent(generator));
    ASSERT_EQ(e4m3_encode(value), reference_code(value)) << value;
  }
}

TEST(E4M3, TiesBetweenEveryPairOfNeighboursGoToEven) {
  for (int code = 0; code < 0x7E; ++code) {
    const double tie = (reference_value(code) + reference_value(code + 1)) / 2;
    const auto value = static_cast<float>(tie);
    ASSERT_EQ(value, tie);
    EXPECT_EQ(e4m3_encode(value), code % 2 == 0 ? code : code + 1);
    EXPECT_EQ(e4m3_encode(std::nextafter(value, 0.0F)), code);
    EXPECT_EQ(e4m3_encode(std::nextafter(value, kInf)), code + 1);
  }
}

static_assert(e4m3_encode(1.0F) == 0x38 && e4m3_decode(0x38) == 1.0F, "the codec is constexpr");

}  // namespace
}  // namespace quaver
