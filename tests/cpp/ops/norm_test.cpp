#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "ops/rms_norm.h"
#include "quaver/error.h"

namespace quaver {
namespace {

std::vector<float> random_values(size_t count, float size, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, size);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

double exact_scale(const std::vector<float>& x, size_t row, size_t dim, double eps) {
  double squares = 0;
  for (size_t j = 0; j < dim; ++j) squares += static_cast<double>(x[row * dim + j]) * x[row * dim + j];
  return 1 / std::sqrt(squares / static_cast<double>(dim) + eps);
}

TEST(RmsNorm, MatchesDoubleReference) {
  for (const size_t dim : {1, 7, 8, 9, 256, 640, 5376}) {
    for (const size_t rows : {0, 1, 3, 17}) {
      for (const float size : {1e-6F, 1.0F, 3e4F}) {
        const std::vector<float> x = random_values(rows * dim, size, 1);
        const std::vector<float> weight = random_values(dim, 1.0F, 2);
        std::vector<float> out(rows * dim, std::numeric_limits<float>::quiet_NaN());
        rms_norm(x.data(), static_cast<int64_t>(rows), static_cast<int64_t>(dim), weight, 1e-6, out.data());
        std::vector<float> sum(rows * dim, 0.5F);
        rms_norm_add(x.data(), static_cast<int64_t>(rows), static_cast<int64_t>(dim), {}, 1e-6, sum.data());
        for (size_t row = 0; row < rows; ++row) {
          const double scale = exact_scale(x, row, dim, 1e-6);
          for (size_t i = 0; i < dim; ++i) {
            const double plain = x[row * dim + i] * scale;
            const double expected = plain * weight[i];
            ASSERT_NEAR(out[row * dim + i], expected, 1e-6 * std::abs(expected)) << dim << " " << row << " " << i;
            ASSERT_NEAR(sum[row * dim + i], 0.5 + plain, 1e-6 * (0.5 + std::abs(plain)));
          }
        }
      }
    }
  }
}

// A row of zeros stays zero (eps), and a row's result does not depend on its neighbours.
TEST(RmsNorm, ZeroRowAndIndependentRows) {
  std::vector<float> x = random_values(size_t{200} * 640, 1.0F, 3);
  std::fill_n(x.begin() + 640, 640, 0.0F);
  std::vector<float> all(x.size());
  rms_norm(x.data(), 200, 640, {}, 1e-6, all.data());
  for (size_t i = 0; i < 640; ++i) EXPECT_EQ(all[640 + i], 0.0F);
  std::vector<float> alone(640);
  rms_norm(x.data() + 100 * 640, 1, 640, {}, 1e-6, alone.data());
  EXPECT_EQ(std::vector<float>(all.begin() + 100 * 640, all.begin() + 101 * 640), alone);
  rms_norm(x.data(), 200, 640, {}, 1e-6, x.data());  // in place
  EXPECT_EQ(x, all);
}

TEST(RmsNorm, RefusesAWeightOfAnotherSize) {
  std::vector<float> x(8);
  const std::vector<float> weight(4, 1.0F);
  EXPECT_THROW(rms_norm(x.data(), 1, 8, weight, 1e-6, x.data()), Error);
}

}  // namespace
}  // namespace quaver
