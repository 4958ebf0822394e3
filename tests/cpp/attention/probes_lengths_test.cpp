// Probes of public bug reports: lengths, masks, splits, head dims, softcap, sinks. See probes_test.cpp.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "attention/probes.h"

namespace quaver::probes {
namespace {

class LengthProbe : public Probe {};

// ---- C: lengths, masks, splits -------------------------------------------------------------------------------------

// B14: more queries than keys.
TEST_P(LengthProbe, B14RowsThatSeeNothing) {
  CaseSpec s = spec(1, 1, 64, {5, 130}, {2, 1});
  s.key = constant(0.0F);
  s.value = one_hot(64);
  Case c(s);
  const Result result = run_case(c);
  for (size_t row = 0; row < 135; ++row) {
    const bool sees = row == 3 || row == 4 || row == 134;
    EXPECT_EQ(result.out[row * 64], sees ? (row == 4 ? 0.5F : 1.0F) : 0.0F);
    EXPECT_EQ(result.out[row * 64 + 1], row == 4 ? 0.5F : 0.0F);
    EXPECT_EQ(result.out[row * 64 + 2], 0.0F);
    if (!sees) {
      EXPECT_EQ(result.lse[row], -kInf);
    }
  }
  EXPECT_NEAR(result.lse[3], 0.0F, 1e-6F);
  EXPECT_NEAR(result.lse[4], std::log(2.0F), 1e-6F);
}

// B16: q_len 8 over a window of 1024 on pages of 16: the key just outside weighs 0, the one just inside 1/1024 exactly.
TEST_P(LengthProbe, B16WindowEdge) {
  for (const int kv_len : {1031, 1100, 2053}) {
    for (const int inside : {0, 1}) {
      CaseSpec s = spec(2, 1, 64, {8}, {kv_len});
      s.window = 1024;
      s.key = constant(0.0F);
      s.value = [&](int, int64_t token, int, int d) {  // dim i belongs to query row i
        return token == kv_len - 8 + d - 1024 + inside ? 1.0F : 0.0F;
      };
      Case c(s);
      const Result result = run_case(c);
      for (size_t row = 0; row < 8; ++row) {
        EXPECT_EQ(result.out[row * 2 * 64 + row], inside == 1 ? 0.0009765625F : 0.0F) << "kv_len " << kv_len;
      }
    }
  }
}

// B16: eight rows in one call equal eight calls of one row, every length around the window.
TEST_P(LengthProbe, B16EightRowsEqualEightCalls) {
  for (const int kv_len : {61, 64, 65, 72, 127, 131}) {
    CaseSpec s = spec(4, 2, 64, {8}, {kv_len});
    s.window = 63;
    s.softmax_scale = 0.125F;
    Case c(s);
    const Result expected = run_case(c);
    for (int row = 0; row < 8; ++row) {
      s.query_lens = {1};
      s.kv_lens = {kv_len - 7 + row};
      Case one(s);
      const size_t values = one.q.size();
      one.args.pages = c.args.pages;
      one.args.block_table = c.args.block_table;
      one.k[0].assign(c.k[0].begin(), c.k[0].begin() + static_cast<int64_t>(one.k[0].size()));
      one.v[0].assign(c.v[0].begin(), c.v[0].begin() + static_cast<int64_t>(one.v[0].size()));
      std::copy_n(c.q.begin() + row * static_cast<int64_t>(values), values, one.q.begin());
      std::copy_n(c.q_bf16.begin() + row * static_cast<int64_t>(values), values, one.q_bf16.begin());
      const Result result = run_case(one);
      for (size_t i = 0; i < values; ++i) {
        EXPECT_NEAR(result.out[i], expected.out[static_cast<size_t>(row) * values + i], 1e-5F) << "kv_len " << kv_len;
      }
    }
  }
}

// B19: LSE is the natural logarithm for every head, in a buffer with padded strides, whole or in splits; and a merge of
// parts by LSE weighs them right.
TEST_P(LengthProbe, B19LseIsNaturalForEveryHead) {
  for (const int q_len : {1, 3}) {
    CaseSpec s = spec(8, 2, 16, {q_len, q_len, q_len}, {10, 100, 1000});
    s.key = constant(0.0F);
    s.causal = false;
    Case c(s);
    const float expected[3] = {2.302585F, 4.605170F, 6.907755F};
    if (GetParam() == Path::kOracle) {
      const Result result = run_case(c);
      for (size_t i = 0; i < result.lse.size(); ++i) {
        EXPECT_NEAR(result.lse[i], expected[i / static_cast<size_t>(8 * q_len)], 1e-6F);
      }
      continue;
    }
    constexpr int64_t kStride = 11;
    constexpr float kCanary = -7.0F;
    std::vector<float> padded(static_cast<size_t>(3 * q_len * kStride), kCanary);
    c.args.lse.data = padded.data();
    c.args.lse.strides = {kStride, 1};
    run_case(c);
    for (size_t i = 0; i < padded.size(); ++i) {
      const size_t sequence = i / static_cast<size_t>(q_len * kStride);
      EXPECT_NEAR(padded[i], i % kStride < 8 ? expected[sequence] : kCanary, 2e-6F);
    }
  }
}

TEST_P(LengthProbe, B19PartsMergeByLse) {
  CaseSpec s = spec(1, 1, 16, {1, 1}, {3072, 64});
  s.key = constant(0.0F);
  s.value = [](int sequence, int64_t, int, int) { return static_cast<float>(sequence); };
  Case c(s);
  const Result parts = run_case(c);
  const double total = std::exp(double{parts.lse[0]}) + std::exp(double{parts.lse[1]});
  const double merged =
      (std::exp(double{parts.lse[0]}) * double{parts.out[0]} + std::exp(double{parts.lse[1]}) * double{parts.out[16]}) /
      total;
  EXPECT_NEAR(merged, 0.020408, 5e-7);
  EXPECT_NEAR(std::log(total), 8.050703, 2e-6);
}

// ---- D: shapes and features ----------------------------------------------------------------------------------------

// B22: every value column is written, for head dims of every multiple of 16 that a page can hold, K and V alike or not.
TEST_P(LengthProbe, B22EveryColumnOfEveryHeadDim) {
  const std::vector<std::pair<int, int>> dims = {{16, 16},   {64, 64},   {80, 80},   {96, 96},   {112, 112},
                                                 {128, 128}, {192, 192}, {208, 208}, {256, 256}, {320, 320},
                                                 {512, 512}, {192, 128}, {64, 512},  {256, 128}};
  for (const auto& [dim_k, dim_v] : dims) {
    for (const int kv_len : {7, 130}) {
      CaseSpec s = spec(4, 2, dim_k, {3}, {kv_len});
      s.kv.head_dim_v = dim_v;
      s.key = constant(0.0F);
      s.value = [](int, int64_t, int, int d) { return static_cast<float>(d % 8 + 1); };
      Case c(s);
      const Result result = run_case(c);
      ASSERT_EQ(result.out.size(), static_cast<size_t>(3 * 4 * dim_v));
      for (size_t i = 0; i < result.out.size(); ++i) {
        ASSERT_NEAR(result.out[i], static_cast<float>(i % static_cast<size_t>(dim_v) % 8 + 1), 1e-5F)
            << dim_k << " " << dim_v;
      }
    }
  }
}

// B23: softcap acts on the descaled logit; cap 0 is no cap; masked keys stay masked.
TEST_P(LengthProbe, B23Softcap) {
  CaseSpec s = spec(1, 1, 16, {2}, {3});  // row 0 does not see key 2
  s.query = [](int, int64_t, int, int d) { return d == 0 ? 1.0F : 0.0F; };
  s.key = [](int, int64_t token, int, int d) {
    return d == 0 ? (token == 0 ? 8.0F : token == 1 ? 4.0F : 16.0F) : 0.0F;
  };
  s.value = one_hot(16);
  s.descales = true;
  const auto with_cap = [&](float cap) {
    s.softcap = cap;
    Case c(s);
    c.q_descale = {2.0F};
    c.k_descale = {0.5F};
    c.logit_descale = {1.0F};
    c.v_descale = {1.0F};
    return run_case(c);
  };
  const Result capped = with_cap(4.0F);
  EXPECT_NEAR(capped.lse[0], 4.224203F, 2e-6F);
  EXPECT_NEAR(capped.out[0], 0.692053F, 0.692053F * weight_error());
  EXPECT_NEAR(capped.out[1], 0.307947F, 0.307947F * weight_error());
  EXPECT_EQ(capped.out[2], 0.0F);
  const Result uncapped = with_cap(0.0F);
  EXPECT_NEAR(uncapped.out[0], 0.982014F, 0.982014F * weight_error());
}

// A sink takes mass in the normaliser only; a row with only a sink is O = 0, LSE = the sink logit. Huge sinks are safe.
TEST_P(LengthProbe, Sinks) {
  for (const float sink : {-kInf, -50.0F, 0.0F, 3.0F, 300.0F}) {
    CaseSpec s = spec(1, 1, 16, {3}, {2});
    s.key = constant(0.0F);
    s.value = constant(1.0F);
    s.sinks = true;
    Case c(s);
    c.sinks = {sink};
    const Result result = run_case(c);
    const double mass = 2.0 / (2.0 + std::exp(double{sink}));
    EXPECT_EQ(result.out[0], 0.0F);
    if (std::isinf(sink)) {
      EXPECT_EQ(result.lse[0], -kInf);
    } else {
      EXPECT_NEAR(result.lse[0], sink, 4e-5F);
    }
    EXPECT_NEAR(result.out[2 * 16], mass, 1e-6);
    EXPECT_NEAR(double{result.lse[2]}, std::log(2.0 + std::exp(double{sink})), 4e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, LengthProbe, kPaths, [](const auto& path) { return path_name(path.param); });

}  // namespace
}  // namespace quaver::probes
