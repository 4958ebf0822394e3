// The decode kernel against float64 on the same quantised data, over head dims, pages, GQA ratios, rows, windows and
// features; unused page bytes are NaN codes, outputs are poisoned, every run is repeated and must give the same bits.
#include <gtest/gtest.h>

#include "device_case.h"
#include "shape.h"
#include "testing/metric.h"

namespace quaver::testing {
namespace {

std::vector<Shape> shapes() {
  return {
      {"one_token", {1}, {1}, 2, 2, 64},
      {"ragged", std::vector<int32_t>(16, 1), ragged_lengths(), 2, 4, 64, 0, 0.0F, false, true},
      {"ragged_page16", std::vector<int32_t>(16, 1), ragged_lengths(), 1, 7, 16, 0, 0.0F, true},
      {"ragged_page32", std::vector<int32_t>(16, 1), ragged_lengths(), 3, 3, 32, 0, 30.0F},
      {"ragged_page128", std::vector<int32_t>(16, 1), ragged_lengths(), 2, 1, 128, 0, 0.0F, false, false, true},
      {"long_page16", {1}, {3001}, 1, 4, 16},
      {"long_many_splits", {1}, {9000}, 1, 8, 64},
      {"group16_two_tokens", {2, 2, 2}, {1100, 31, 999}, 1, 16, 128, 0, 0.0F, true, true, true},
      {"group12", {1, 1, 1}, {77, 500, 0}, 2, 12, 32},
      {"group6_five_tokens", {5, 5, 2, 0}, {77, 500, 1, 40}, 2, 6, 16},
      {"rows32", {8, 8, 8, 8}, {77, 500, 8, 3}, 2, 4, 64},
      {"rows32_one_head", {32, 32, 32}, {600, 40, 33}, 2, 1, 64, 0, 20.0F, true},
      {"more_queries_than_keys", {5, 30, 3}, {2, 1, 0}, 1, 1, 64},  // B14
      {"ragged_queries", {3, 0, 7, 1, 4}, {300, 20, 7, 129, 1025}, 2, 4, 64},
      {"window128", {1, 1, 1, 1, 1, 1, 1}, {700, 128, 127, 129, 1, 333, 0}, 4, 2, 32, 128},
      {"window100_seven_tokens", {7, 5, 7, 1}, {77, 500, 8, 250}, 2, 3, 16, 100, 0.0F, true, true},
      {"window200", {1, 1, 1, 1, 1, 1}, {5, 260, 1023, 1024, 1025, 2}, 2, 1, 128, 200, 50.0F},
      {"window1", {1, 2, 3}, {5, 260, 64}, 1, 2, 64, 1},
      {"window1500_rows32", {4, 2}, {4000, 10}, 1, 8, 32, 1500},
      {"not_causal", {4, 3, 1}, {500, 70, 2}, 2, 2, 64, 0, 0.0F, false, false, false, false},
      {"not_causal_window", {4, 3, 1}, {500, 70, 2}, 2, 2, 64, 40, 0.0F, false, false, false, false},
      {"forty_sequences", std::vector<int32_t>(40, 1), std::vector<int32_t>(40, 70), 3, 2, 16},
      {"bf16_out", {1, 2, 1}, {400, 129, 0}, 2, 4, 64, 0, 0.0F, false, true, false, true, DType::kBF16},
  };
}

class DecodeShapes : public ::testing::TestWithParam<std::tuple<int, Precision>> {};

TEST_P(DecodeShapes, MatchFloat64AndRepeatBitwise) {
  const auto [head_dim, precision] = GetParam();
  uint64_t seed = 7;
  for (const Shape& shape : shapes()) {
    SCOPED_TRACE(shape.name);
    const Case host(spec_of(shape, {.head_dim_k = head_dim, .head_dim_v = head_dim}, ++seed));
    DeviceCase device(host);
    const OracleOutput expected = host.expected();
    for (const bool batch_invariant : {false, true}) {
      SCOPED_TRACE(batch_invariant ? "fixed splits" : "even cut");
      const AttentionPlan plan = decode_plan(device.problem, precision, batch_invariant);
      DeviceAttention attention(device.problem, plan, query_device(0), device.limits());
      const Outputs first = device.run(attention);
      const std::vector<float> values = first.values();
      Tolerance limit = tolerance(precision, shape.out);
      // Rows of one or two keys share one rounding of P, so their errors do not average out in the gain.
      if (precision == Precision::kSingle) limit.gain = limit.relative_l2;
      EXPECT_TRUE(close_to<float>(values, expected.out, head_dim, limit));
      EXPECT_TRUE(lse_close_to<float>(first.lse, expected.lse, limit));
      EXPECT_TRUE(first == device.run(attention)) << "second run differs";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(HeadDims, DecodeShapes,
                         ::testing::Combine(::testing::Values(64, 96, 128, 192, 256, 512),
                                            ::testing::Values(Precision::kSplit, Precision::kSingle)),
                         [](const auto& test) {
                           return concat("d", std::get<0>(test.param), "_", precision_name(std::get<1>(test.param)));
                         });

}  // namespace
}  // namespace quaver::testing
