// The float64 oracle against closed forms. Every number below was computed by hand, not by the code under test.
#include "attention/cpu/oracle.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "quaver/error.h"

namespace quaver {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Keys 0, value j one-hot at dim j % dim: the zero pattern of row i is its mask, the other values are 1 / n_i.
struct MaskProbe {
  MaskProbe(int queries, int keys, int dim)
      : q(static_cast<size_t>(queries) * dim, 1.0F),
        k(static_cast<size_t>(keys) * dim, 0.0F),
        v(static_cast<size_t>(keys) * dim, 0.0F) {
    for (int j = 0; j < keys; ++j) v[static_cast<size_t>(j) * dim + j % dim] = 1.0F;
    input = {.head_dim_k = dim, .head_dim_v = dim, .q = q, .k = k, .v = v};
  }
  std::vector<float> q;
  std::vector<float> k;
  std::vector<float> v;
  OracleInput input;
};

void expect_row(const OracleOutput& result, int row, int dim, const std::vector<int>& visible) {
  const double weight = visible.empty() ? 0.0 : 1.0 / static_cast<double>(visible.size());
  std::vector<double> expected(static_cast<size_t>(dim), 0.0);
  for (const int key : visible) expected[static_cast<size_t>(key % dim)] += weight;
  for (int d = 0; d < dim; ++d) {
    EXPECT_DOUBLE_EQ(result.out[static_cast<size_t>(row) * dim + d], expected[static_cast<size_t>(d)])
        << "row " << row << " dim " << d;
  }
  const double lse = visible.empty() ? -kInf : std::log(static_cast<double>(visible.size()));
  EXPECT_DOUBLE_EQ(result.lse[static_cast<size_t>(row)], lse) << "row " << row;
}

// B14: more queries than keys under bottom-right causal masking.
TEST(Oracle, RowsThatSeeNothingAreZeroWithLseMinusInfinity) {
  const MaskProbe probe(5, 2, 64);
  const OracleOutput result = attention_oracle(probe.input);
  for (int row = 0; row < 3; ++row) expect_row(result, row, 64, {});
  expect_row(result, 3, 64, {0});
  expect_row(result, 4, 64, {0, 1});

  const MaskProbe tall(130, 1, 16);
  const OracleOutput dead = attention_oracle(tall.input);
  for (int row = 0; row < 129; ++row) expect_row(dead, row, 16, {});
  expect_row(dead, 129, 16, {0});
}

TEST(Oracle, NoKeysAndNoQueries) {
  const MaskProbe no_keys(2, 0, 16);
  const OracleOutput empty = attention_oracle(no_keys.input);
  expect_row(empty, 0, 16, {});
  expect_row(empty, 1, 16, {});
  const MaskProbe no_queries(0, 3, 16);
  EXPECT_TRUE(attention_oracle(no_queries.input).out.empty());
}

TEST(Oracle, WindowCountsTheTokenItself) {
  MaskProbe probe(3, 9, 16);
  probe.input.window = 4;
  const OracleOutput result = attention_oracle(probe.input);
  expect_row(result, 0, 16, {3, 4, 5, 6});
  expect_row(result, 1, 16, {4, 5, 6, 7});
  expect_row(result, 2, 16, {5, 6, 7, 8});
}

// B16: the edge of a window of 1024: key p - 1024 is outside, key p - 1023 weighs exactly 1/1024.
TEST(Oracle, WindowEdge) {
  MaskProbe probe(1, 1500, 16);
  probe.input.window = 1024;
  const int position = 1499;
  for (const int inside : {0, 1}) {
    std::fill(probe.v.begin(), probe.v.end(), 0.0F);
    probe.v[static_cast<size_t>(position - 1024 + inside) * 16] = 1.0F;
    EXPECT_EQ(attention_oracle(probe.input).out[0], inside == 1 ? 0.0009765625 : 0.0);
  }
}

TEST(Oracle, NonCausalSeesEveryKeyOrASymmetricWindow) {
  MaskProbe probe(2, 5, 16);
  probe.input.causal = false;
  expect_row(attention_oracle(probe.input), 0, 16, {0, 1, 2, 3, 4});
  probe.input.window = 2;
  const OracleOutput result = attention_oracle(probe.input);
  expect_row(result, 0, 16, {2, 3, 4});
  expect_row(result, 1, 16, {3, 4});
  const MaskProbe early(5, 5, 16);
  OracleInput all = early.input;
  all.causal = false;
  all.window = 2;
  expect_row(attention_oracle(all), 0, 16, {0, 1});
  expect_row(attention_oracle(all), 2, 16, {1, 2, 3});
}

// Window AND (causal OR same span), as Gemma 4's vision layers mask.
TEST(Oracle, SpansSeeEachOtherInsideTheWindow) {
  MaskProbe probe(6, 8, 16);  // query row i is token i + 2
  const std::vector<int32_t> spans = {-1, 0, 0, 0, 1, 1};
  probe.input.span_ids = spans;
  const OracleOutput full = attention_oracle(probe.input);
  expect_row(full, 0, 16, {0, 1, 2});
  expect_row(full, 1, 16, {0, 1, 2, 3, 4, 5});
  expect_row(full, 3, 16, {0, 1, 2, 3, 4, 5});
  expect_row(full, 4, 16, {0, 1, 2, 3, 4, 5, 6, 7});
  probe.input.window = 2;
  const OracleOutput windowed = attention_oracle(probe.input);
  expect_row(windowed, 0, 16, {1, 2});
  expect_row(windowed, 1, 16, {2, 3, 4, 5});
  expect_row(windowed, 3, 16, {4, 5});
}

// B02: small weights keep their mass.
TEST(Oracle, DiffuseMass) {
  std::vector<float> q(64, 0.0F);
  std::vector<float> k(size_t{4097} * 64, 0.0F);
  const std::vector<float> v(size_t{4097} * 64, 1.0F);
  q[0] = 1.0F;
  k[0] = 7.0F;
  const OracleOutput result = attention_oracle({.head_dim_k = 64, .head_dim_v = 64, .q = q, .k = k, .v = v});
  EXPECT_NEAR(result.out[0], 1.0, 1e-12);
  EXPECT_NEAR(result.lse[0], 8.554996, 5e-7);
}

// B23: softcap acts on the descaled logit.
TEST(Oracle, Softcap) {
  std::vector<float> q(16, 0.0F);
  std::vector<float> k(32, 0.0F);
  std::vector<float> v(32, 0.0F);
  q[0] = 4.0F;
  k[0] = 4.0F;   // logit 16 before the descale of 0.5
  k[16] = 2.0F;  // logit 8
  v[0] = v[17] = 1.0F;
  const std::vector<float> half = {0.5F};
  OracleInput input{.head_dim_k = 16, .head_dim_v = 16, .q = q, .k = k, .v = v, .logit_descale = half};
  EXPECT_NEAR(attention_oracle(input).out[0], 0.982014, 5e-7);
  input.softcap = 4.0;
  const OracleOutput capped = attention_oracle(input);
  EXPECT_NEAR(capped.out[0], 0.692053, 5e-7);
  EXPECT_NEAR(capped.out[1], 1.0 - 0.692053, 5e-7);
  EXPECT_NEAR(capped.lse[0], 4.224203, 5e-7);
}

TEST(Oracle, SinkTakesMassAndIsInTheLse) {
  MaskProbe probe(3, 2, 16);
  const std::vector<float> sinks = {std::log(2.0F)};
  probe.input.sinks = sinks;
  const OracleOutput result = attention_oracle(probe.input);
  EXPECT_DOUBLE_EQ(result.out[0], 0.0);  // only the sink: O = 0, LSE = the sink logit
  EXPECT_DOUBLE_EQ(result.lse[0], double{sinks[0]});
  EXPECT_NEAR(result.out[2 * 16], 0.25, 1e-7);  // two keys of weight 1 and a sink of weight 2
  EXPECT_NEAR(result.lse[2], std::log(4.0), 1e-7);
}

// B04: descales by (sequence, kv head); all query heads of a group are equal. One sequence of the probe at a time.
TEST(Oracle, Descales) {
  constexpr int kKeys = 100;
  const std::vector<float> q(size_t{12} * 64, 1.0F);
  const std::vector<float> k(size_t{kKeys} * 2 * 64, 0.5F);
  const std::vector<float> v(size_t{kKeys} * 2 * 64, 1.0F);
  const double expected_lse[2][2] = {{8.605170, 6.605170}, {6.605170, 5.605170}};
  for (int b = 0; b < 2; ++b) {
    const std::vector<float> logit = {std::ldexp(1.0F, -b), std::ldexp(1.0F, -b - 1)};
    const std::vector<float> value = {1.0F + 2.0F * static_cast<float>(b), 2.0F + 2.0F * static_cast<float>(b)};
    const OracleOutput result = attention_oracle({.num_q_heads = 12,
                                                  .num_kv_heads = 2,
                                                  .head_dim_k = 64,
                                                  .head_dim_v = 64,
                                                  .q = q,
                                                  .k = k,
                                                  .v = v,
                                                  .softmax_scale = 0.125,
                                                  .logit_descale = logit,
                                                  .value_descale = value});
    for (int head = 0; head < 12; ++head) {
      EXPECT_NEAR(result.lse[static_cast<size_t>(head)], expected_lse[b][head / 6], 5e-7);
      EXPECT_NEAR(result.out[static_cast<size_t>(head) * 64], 1.0 + 2.0 * b + head / 6, 1e-12);
    }
  }
}

// B21: routing of query heads to kv heads for ratios that are no powers of two; the rest is refused.
TEST(Oracle, HeadRatios) {
  for (const auto& [heads, kv_heads] :
       {std::pair{12, 2}, {28, 4}, {24, 2}, {40, 8}, {16, 1}, {48, 1}, {9, 3}, {71, 1}}) {
    const std::vector<float> q(static_cast<size_t>(heads) * 16, 1.0F);
    std::vector<float> k(static_cast<size_t>(3 * kv_heads) * 16, 1.0F);
    std::vector<float> v = k;
    for (size_t i = 0; i < v.size(); ++i) v[i] = 1.0F + static_cast<float>(static_cast<int>(i / 16) % kv_heads);
    const OracleOutput result = attention_oracle(
        {.num_q_heads = heads, .num_kv_heads = kv_heads, .head_dim_k = 16, .head_dim_v = 16, .q = q, .k = k, .v = v});
    for (int head = 0; head < heads; ++head) {
      EXPECT_DOUBLE_EQ(result.out[static_cast<size_t>(head) * 16 + 15], 1 + head / (heads / kv_heads));
    }
  }
  for (const auto& [heads, kv_heads] : {std::pair{33, 2}, {3, 2}, {8, 0}}) {
    const OracleInput input{.num_q_heads = heads, .num_kv_heads = kv_heads, .head_dim_k = 16, .head_dim_v = 16};
    EXPECT_THROW(static_cast<void>(attention_oracle(input)), Error);
  }
}

TEST(Oracle, VisibleNanSpreadsAndHiddenNanDoesNot) {
  MaskProbe probe(2, 3, 16);
  probe.k[2 * 16] = kNan;  // key 2: seen by row 1 only
  probe.v[2 * 16 + 5] = kNan;
  const OracleOutput result = attention_oracle(probe.input);
  expect_row(result, 0, 16, {0, 1});
  EXPECT_TRUE(std::isnan(result.lse[1]));
  for (int d = 0; d < 16; ++d) EXPECT_TRUE(std::isnan(result.out[static_cast<size_t>(16 + d)]));
}

}  // namespace
}  // namespace quaver
