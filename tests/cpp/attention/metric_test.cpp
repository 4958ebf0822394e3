// The metric must reject what is wrong: every test here damages a right answer in one way.
#include "testing/metric.h"

#include <gtest/gtest.h>

#include <limits>

#include "testing/cases.h"

namespace quaver::testing {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

class Metric : public ::testing::TestWithParam<Precision> {
 protected:
  static CaseSpec spec() {
    return {.query_lens = {3, 1, 7},
            .kv_lens = {131, 64, 97},
            .num_q_heads = 4,
            .kv = {.num_kv_heads = 2, .head_dim_k = 64, .head_dim_v = 64, .page_size = 16},
            .seed = 5};
  }
  [[nodiscard]] Tolerance limit() const { return tolerance(GetParam(), DType::kF32); }
  [[nodiscard]] ::testing::AssertionResult accepts(const std::vector<float>& actual) const {
    return close_to(std::span<const float>(actual), std::span<const double>(expected_.out), 64, limit());
  }

  const Case case_{spec()};
  const OracleOutput expected_ = case_.expected();
  std::vector<float> right_{expected_.out.begin(), expected_.out.end()};
};

TEST_P(Metric, AcceptsTheRightAnswer) {
  EXPECT_TRUE(accepts(right_));
}

TEST_P(Metric, RejectsZeros) {
  EXPECT_FALSE(accepts(std::vector<float>(right_.size(), 0.0F)));
}

TEST_P(Metric, RejectsAShiftedPage) {
  Case shifted(spec());
  const int64_t row = int64_t{2} * 64;
  std::rotate(shifted.k[0].begin(), shifted.k[0].begin() + 16 * row, shifted.k[0].begin() + 32 * row);
  const OracleOutput wrong = shifted.expected();
  EXPECT_FALSE(accepts({wrong.out.begin(), wrong.out.end()}));
}

TEST_P(Metric, RejectsASwappedHead) {
  std::swap_ranges(right_.begin(), right_.begin() + 64, right_.begin() + 64);
  EXPECT_FALSE(accepts(right_));
}

TEST_P(Metric, RejectsAScaleErrorOfOnePercent) {
  for (const float gain : {0.99F, 1.01F}) {
    std::vector<float> wrong = right_;
    for (float& value : wrong) value *= gain;
    EXPECT_FALSE(accepts(wrong));
  }
}

TEST_P(Metric, RejectsOneWrongRow) {
  std::fill_n(right_.begin() + 64 * 9, 64, 0.0F);
  EXPECT_FALSE(accepts(right_));
}

TEST_P(Metric, RejectsNanAndInfinity) {
  for (const float bad : {kNan, kInf, -kInf}) {
    std::vector<float> wrong = right_;
    wrong[100] = bad;
    EXPECT_FALSE(accepts(wrong));
  }
}

TEST_P(Metric, RejectsANumberWhereNanIsDue) {
  std::vector<double> reference = expected_.out;
  reference[7] = double{kNan};
  const std::span<const float> actual(right_);
  EXPECT_FALSE(close_to(actual, std::span<const double>(reference), 64, limit()));
  right_[7] = kNan;
  EXPECT_TRUE(close_to(actual, std::span<const double>(reference), 64, limit()));
}

TEST_P(Metric, ADeadRowMustBeExactlyZero) {
  std::vector<double> reference = expected_.out;
  std::fill_n(reference.begin(), 64, 0.0);
  std::fill_n(right_.begin(), 64, 0.0F);
  const std::span<const float> actual(right_);
  EXPECT_TRUE(close_to(actual, std::span<const double>(reference), 64, limit()));
  right_[3] = 1e-30F;
  EXPECT_FALSE(close_to(actual, std::span<const double>(reference), 64, limit()));
}

TEST_P(Metric, RejectsWrongLse) {
  std::vector<float> lse(expected_.lse.begin(), expected_.lse.end());
  const std::span<const float> actual(lse);
  const std::span<const double> reference(expected_.lse);
  EXPECT_TRUE(lse_close_to(actual, reference, limit()));
  const float right = lse[4];
  for (const float wrong : {right / std::log(2.0F), right + 0.2F, -kInf, kNan, 0.0F}) {
    lse[4] = wrong;
    EXPECT_FALSE(lse_close_to(actual, reference, limit())) << wrong;
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, Metric, ::testing::Values(Precision::kFull, Precision::kSplit, Precision::kSingle),
                         [](const auto& mode) { return std::string(precision_name(mode.param)); });

}  // namespace
}  // namespace quaver::testing
