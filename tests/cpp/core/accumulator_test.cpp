// The tensor-core accumulator: against results read from an H200, and the vector code against a literal version.
#include "core/accumulator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "core/e4m3.h"
#include "testing/random.h"

namespace quaver {
namespace {

using testing::Random;

// The exponent field of a code; subnormals share the lowest one.
int exponent_of(uint8_t code) {
  return std::max((code >> 3) & 15, 1) - 7;
}

// One instruction as the header's comment describes it, one term at a time, in float64 (every step is exact there).
float literal_step(float c, const uint8_t* a, const uint8_t* b) {
  int top = std::numeric_limits<int>::min();
  for (int k = 0; k < kMmaDepth; ++k) {
    if (e4m3_decode(a[k]) == 0.0F || e4m3_decode(b[k]) == 0.0F) continue;
    top = std::max(top, exponent_of(a[k]) + exponent_of(b[k]));
  }
  if (c != 0.0F) top = std::max(top, std::ilogb(c));
  if (top == std::numeric_limits<int>::min()) return 0.0F;
  const double unit = std::ldexp(1.0, top - kAccumulatorFractionBits);
  double sum = std::trunc(double{c} / unit);
  for (int k = 0; k < kMmaDepth; ++k) {
    sum += std::trunc(double{e4m3_decode(a[k])} * double{e4m3_decode(b[k])} / unit);
  }
  if (sum == 0.0) return 0.0F;
  const double result = sum * unit;
  const double last_bit = std::ldexp(1.0, std::ilogb(result) - kAccumulatorFractionBits);
  return static_cast<float>(std::trunc(result / last_bit) * last_bit);
}

std::vector<uint8_t> random_codes(Random& random, size_t count, int lowest_exponent, int highest_exponent) {
  std::vector<uint8_t> codes(count);
  for (uint8_t& code : codes) {
    do {
      const auto exponent =
          static_cast<uint64_t>(lowest_exponent + random.below(highest_exponent - lowest_exponent + 1));
      code = static_cast<uint8_t>((random.bits() & 0x87U) | exponent << 3);
      if (random.below(8) == 0) code = 0;
    } while (e4m3_is_nan(code));
  }
  return codes;
}

std::vector<uint8_t> from_hex(const std::string& text) {
  std::vector<uint8_t> bytes(text.size() / 2);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<uint8_t>(std::stoul(text.substr(2 * i, 2), nullptr, 16));
  }
  return bytes;
}

float float_from_hex(const std::string& text) {
  return std::bit_cast<float>(static_cast<uint32_t>(std::stoul(text, nullptr, 16)));
}

TEST(Accumulator, EqualsTheTensorCoreBitForBit) {
  std::ifstream file(QUAVER_SOURCE_DIR "/tests/golden/fp8_accumulator_h200.txt");
  int cases = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#')) continue;
    std::istringstream words(line);
    std::string a_hex;
    std::string b_hex;
    std::string c_hex;
    std::string d_hex;
    words >> a_hex >> b_hex >> c_hex >> d_hex;
    const std::vector<uint8_t> a = from_hex(a_hex);
    const std::vector<uint8_t> b = from_hex(b_hex);
    const auto depth = static_cast<int>(a.size());
    MmaRow row(depth);
    MmaMatrix matrix(depth, 1);
    for (int k = 0; k < depth; ++k) {
      row.set(k, a[static_cast<size_t>(k)]);
      matrix.set(k, 0, b[static_cast<size_t>(k)]);
    }
    std::vector<float> d(static_cast<size_t>(matrix.padded_lanes()), float_from_hex(c_hex));
    float literal = d[0];
    matrix.multiply(row, 0, depth, false, Accumulator::kHardware13, d);
    for (int k = 0; k < depth; k += kMmaDepth) literal = literal_step(literal, a.data() + k, b.data() + k);
    EXPECT_EQ(d[0], float_from_hex(d_hex)) << "line " << cases;
    EXPECT_EQ(literal, float_from_hex(d_hex)) << "line " << cases;
    ++cases;
  }
  EXPECT_EQ(cases, 192);
}

TEST(Accumulator, VectorCodeEqualsTheLiteralModel) {
  Random random(11);
  for (const auto& [low, high] : {std::pair{0, 15}, {5, 9}, {0, 2}, {0, 0}, {13, 15}}) {
    for (const int depth : {32, 64, 160}) {
      for (const int lanes : {1, 33, 96}) {
        const auto a = random_codes(random, static_cast<size_t>(depth), low, high);
        MmaRow row(depth);
        MmaMatrix matrix(depth, lanes);
        std::vector<std::vector<uint8_t>> b(static_cast<size_t>(lanes));
        for (int k = 0; k < depth; ++k) row.set(k, a[static_cast<size_t>(k)]);
        std::vector<float> d(static_cast<size_t>(matrix.padded_lanes()), 0.0F);
        for (int lane = 0; lane < lanes; ++lane) {
          auto& column = b[static_cast<size_t>(lane)] = random_codes(random, static_cast<size_t>(depth), low, high);
          for (int k = 0; k < depth; ++k) matrix.set(k, lane, column[static_cast<size_t>(k)]);
          d[static_cast<size_t>(lane)] = std::ldexp(random.normal(), static_cast<int>(random.below(30)) - 20);
        }
        for (const bool fresh : {true, false}) {
          std::vector<float> result = d;
          matrix.multiply(row, 0, depth, fresh, Accumulator::kHardware13, result);
          for (size_t lane = 0; lane < b.size(); ++lane) {
            float expected = fresh ? 0.0F : d[lane];
            for (int k = 0; k < depth; k += kMmaDepth) {
              expected = literal_step(expected, a.data() + k, b[lane].data() + k);
            }
            ASSERT_EQ(result[lane], expected)
                << "exponents " << low << "-" << high << " depth " << depth << " lane " << lane << " fresh " << fresh;
          }
        }
      }
    }
  }
}

// 1 + 31 * 2^-14: every small term is below the last kept bit, so the tensor core returns 1; FP32 adds them.
TEST(Accumulator, DropsWhatLies13BitsBelowTheLargestTerm) {
  MmaRow row(32);
  MmaMatrix matrix(32, 1);
  for (int k = 0; k < 32; ++k) {
    row.set(k, e4m3_encode(k == 0 ? 1.0F : 0x1p-6F));
    matrix.set(k, 0, e4m3_encode(k == 0 ? 1.0F : -0x1p-8F));
  }
  std::vector<float> d(32);
  matrix.multiply(row, 0, 32, true, Accumulator::kHardware13, d);
  EXPECT_EQ(d[0], 1.0F);
  matrix.multiply(row, 0, 32, true, Accumulator::kFp32, d);
  EXPECT_EQ(d[0], 1.0F - 31 * 0x1p-14F);
}

TEST(Accumulator, NanStaysInItsLaneUnlessTheRowHoldsIt) {
  for (const Accumulator accumulator : {Accumulator::kHardware13, Accumulator::kFp32}) {
    MmaRow row(64);
    MmaMatrix matrix(64, 3);
    for (int k = 0; k < 64; ++k) {
      for (int lane = 0; lane < 3; ++lane) matrix.set(k, lane, e4m3_encode(1.0F));
    }
    row.set(0, e4m3_encode(2.0F));
    matrix.set(40, 1, kE4M3Nan);  // meets a zero of A: 0 * NaN is NaN
    std::vector<float> d(32);
    matrix.multiply(row, 0, 64, true, accumulator, d);
    EXPECT_EQ(d[0], 2.0F);
    EXPECT_TRUE(std::isnan(d[1]));
    EXPECT_EQ(d[2], 2.0F);
    matrix.multiply(row, 0, 32, false, accumulator, d);  // a NaN in D stays
    EXPECT_TRUE(std::isnan(d[1]));
    EXPECT_EQ(d[0], 4.0F);
    row.set(33, 0xFF);
    matrix.multiply(row, 0, 64, true, accumulator, d);
    EXPECT_TRUE(std::isnan(d[0]));
    matrix.clear();
    row.set(33, 0);
    matrix.multiply(row, 0, 64, true, accumulator, d);
    EXPECT_EQ(d[1], 0.0F);
  }
}

}  // namespace
}  // namespace quaver
