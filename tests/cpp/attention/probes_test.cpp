// The probes of public bug reports (B..: see the names), through the oracle and both modes of the emulation, on pages:
// masks, routing, scales, paging. Expected values are closed forms.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "attention/probes.h"

namespace quaver::probes {
namespace {

// ---- mask, mass and routing probes ---------------------------------------------------------------------------------

// Keys 0, value j one-hot at dim j % D: the zero pattern is the mask. n visible keys weigh 1/n; P is 256 exactly.
TEST_P(Probe, Mask) {
  for (const int window : {0, 1, 5, 16}) {
    for (const bool causal : {true, false}) {
      CaseSpec s = spec(2, 1, 64, {5, 17, 1, 3, 0, 40}, {64, 17, 1, 2, 9, 40});
      s.key = constant(0.0F);
      s.value = one_hot(64);
      s.window = window;
      s.causal = causal;
      Case c(s);
      const Result result = run_case(c);
      size_t row = 0;
      for (size_t b = 0; b < s.kv_lens.size(); ++b) {
        for (int token = 0; token < s.query_lens[b]; ++token) {
          const int position = s.kv_lens[b] - s.query_lens[b] + token;
          std::vector<int> visible;
          for (int key = 0; key < s.kv_lens[b]; ++key) {
            const bool inside = window == 0 || (key > position - window && key < position + window);
            if (inside && (key <= position || !causal)) visible.push_back(key);
          }
          const auto n = static_cast<float>(visible.size());
          for (int head = 0; head < 2; ++head, ++row) {
            if (visible.empty()) {
              ASSERT_EQ(result.lse[row], -kInf);
            } else {
              ASSERT_NEAR(result.lse[row], std::log(n), 1e-6F);
            }
            std::vector<float> expected(64, 0.0F);
            for (const int key : visible) expected[static_cast<size_t>(key)] = 1.0F / n;
            for (size_t d = 0; d < 64; ++d) ASSERT_NEAR(result.out[row * 64 + d], expected[d], 1e-7F);
          }
        }
      }
    }
  }
}

// V = 1: whatever the logits, O is 1. Shows lost mass that LSE hides.
TEST_P(Probe, Mass) {
  CaseSpec s = spec(4, 2, 64, {1, 6, 1}, {300, 129, 2000});
  s.value = constant(1.0F);
  s.softmax_scale = 0.125F;
  Case c(s);
  for (const float value : run_case(c).out) EXPECT_NEAR(value, 1.0F, rounds_p() ? 2e-2F : 2e-3F);
}

// B21: V names its batch and kv head; ratios that are no powers of two; q_len * ratio across the row tile of 128.
TEST_P(Probe, RoutingForAnyHeadRatio) {
  for (const auto& [heads, kv_heads] :
       {std::pair{12, 2}, {28, 4}, {24, 2}, {40, 8}, {16, 1}, {48, 1}, {9, 3}, {71, 1}}) {
    CaseSpec s = spec(heads, kv_heads, 16, {1, 10, 11, 12}, {3, 10, 30, 64});
    s.value = [&](int sequence, int64_t, int head, int) {
      return 1.0F + 2.0F * static_cast<float>(sequence) + static_cast<float>(head);
    };
    s.key = constant(0.0F);
    Case c(s);
    const Result result = run_case(c);
    size_t at = 0;
    for (int b = 0; b < 4; ++b) {
      for (int token = 0; token < s.query_lens[static_cast<size_t>(b)]; ++token) {
        for (int head = 0; head < heads; ++head) {
          for (int d = 0; d < 16; ++d) ASSERT_NEAR(result.out[at++], 1 + 2 * b + head / (heads / kv_heads), 1e-5F);
        }
      }
    }
  }
}

// ---- A: numerics and scales ----------------------------------------------------------------------------------------

// B02: 4096 weights of e^-7 beside one of 1 keep their mass.
TEST_P(Probe, B02SmallWeightsKeepTheirMass) {
  CaseSpec s = spec(1, 1, 64, {1}, {4097});
  s.query = [](int, int64_t, int, int d) { return d == 0 ? 1.0F : 0.0F; };
  s.key = [](int, int64_t token, int, int d) { return token == 0 && d == 0 ? 7.0F : 0.0F; };
  s.value = constant(1.0F);
  Case c(s);
  const Result result = run_case(c);
  EXPECT_NEAR(result.lse[0], 8.554996F, 2e-6F);
  // m = ceil(7 log2(e)) = 11: the key itself is e^7 / 8 = 137.0791, in E4M3 144, as hi + lo/16 144 - 112/16 = 137; the
  // others are exactly 1/8. The normaliser sums unrounded: 137.0791 + 512.
  const float total = 137.0791F + 512.0F;
  const float rounded = GetParam() == Path::kOracle ? total : (rounds_p() ? 144.0F : 137.0F) + 512.0F;
  EXPECT_NEAR(result.out[0], rounded / total, 1e-6F);
}

// B04: descales by (sequence, kv head), contiguous, expanded (stride 0) and transposed.
TEST_P(Probe, B04DescalesOfEverySequenceAndHead) {
  const std::vector<float> expanded = {1.0F, 0.5F};                // q_descale[b] for all heads: strides {1, 0}
  const std::vector<float> transposed = {1.0F, 3.0F, 2.0F, 4.0F};  // v_descale stored [h][b]: strides {1, 2}
  for (const bool strided : {false, true}) {
    for (const std::vector<int32_t>& query_lens : {std::vector<int32_t>{1, 1}, {7, 100}}) {
      CaseSpec s = spec(12, 2, 64, query_lens, {100, 100});
      s.query = constant(1.0F);
      s.key = constant(0.5F);
      s.value = constant(1.0F);
      s.softmax_scale = 0.125F;
      s.causal = false;
      s.descales = true;
      Case c(s);
      c.q_descale = {1.0F, 1.0F, 0.5F, 0.5F};
      c.k_descale = {1.0F, 0.5F, 1.0F, 0.5F};
      c.v_descale = {1.0F, 2.0F, 3.0F, 4.0F};
      c.logit_descale = {1.0F, 0.5F, 0.5F, 0.25F};
      if (strided) {
        c.args.q_descale.data = expanded.data();
        c.args.q_descale.strides = {1, 0};
        c.args.v_descale.data = transposed.data();
        c.args.v_descale.strides = {1, 2};
      }
      const Result result = run_case(c);
      const float lse[2][2] = {{8.605170F, 6.605170F}, {6.605170F, 5.605170F}};
      size_t row = 0;
      for (size_t b = 0; b < 2; ++b) {
        for (int token = 0; token < query_lens[b]; ++token) {
          for (size_t head = 0; head < 12; ++head, ++row) {
            EXPECT_NEAR(result.lse[row], lse[b][head / 6], 2e-6F);
            const auto value = static_cast<float>(1 + 2 * b + head / 6);
            EXPECT_NEAR(result.out[row * 64], value, value * weight_error());
          }
        }
      }
    }
  }
}

// B05: decode, prefill, chunk and split paths honour the same scales. Logit 8 before the descale, 2 after.
TEST_P(Probe, B05EveryPathHonoursTheScales) {
  for (const int q_len : {1, 3, 50}) {
    CaseSpec s = spec(2, 1, 64, {q_len}, {50});
    s.query = constant(1.0F);
    s.key = constant(0.125F);
    s.value = constant(2.0F);
    s.causal = false;
    s.descales = true;
    Case c(s);
    c.q_descale = {1.0F};
    c.k_descale = c.logit_descale = {0.25F};
    c.v_descale = {0.5F};
    const Result result = run_case(c);
    for (const float value : result.out) EXPECT_NEAR(value, 1.0F, weight_error());
    for (const float lse : result.lse) EXPECT_NEAR(lse, std::log(50.0F) + 2.0F, 2e-6F);
  }
}

// B05: no scale is the same as a scale of 1.0, bit for bit.
TEST_P(Probe, B05NoneEqualsOne) {
  CaseSpec s = spec(4, 2, 64, {1, 5}, {77, 131});
  s.softmax_scale = 0.125F;
  Case none(s);
  const Result expected = run_case(none);
  const std::vector<float> ones(4, 1.0F);
  none.args.k_scale = none.args.v_scale = ConstTensorView(ones.data(), DType::kF32, {2});
  none.args.q_descale = none.args.k_descale = none.args.v_descale = ConstTensorView(ones.data(), DType::kF32, {2, 2});
  const Result result = run_case(none);
  EXPECT_TRUE(same_bits(result.out, expected.out));
  EXPECT_TRUE(same_bits(result.lse, expected.lse));
}

// An all-zero query row has scale 1, the tiniest one a finite scale; both are uniform attention.
TEST_P(Probe, ZeroAndTinyQueries) {
  for (const float amax : {0.0F, 1e-38F, 1e-30F}) {
    CaseSpec s = spec(1, 1, 64, {2}, {64});
    s.query = constant(amax);
    s.value = one_hot(64);
    Case c(s);
    const Result result = run_case(c);
    EXPECT_NEAR(result.lse[1], std::log(64.0F), 2e-6F);
    for (size_t d = 0; d < 64; ++d) EXPECT_NEAR(result.out[64 + d], 1.0F / 64, 1e-7F);
  }
}

// ---- B: paging -----------------------------------------------------------------------------------------------------

// B12: the same content under other page ids, and any value in table entries past the end, changes no bit.
TEST_P(Probe, B12PageIdsAndTableTailsDoNotMatter) {
  CaseSpec s = spec(2, 1, 64, {1, 4}, {33, 64});
  s.softmax_scale = 0.125F;
  Case c(s);
  const Result expected = run_case(c);
  const int64_t pages = c.args.pages.dim(0);
  const int64_t page_bytes = c.args.pages.dim(1);
  std::vector<uint8_t> reversed(c.pages.size());
  for (int64_t id = 0; id < pages; ++id) {
    std::copy_n(c.pages.begin() + id * page_bytes, page_bytes, reversed.begin() + (pages - 1 - id) * page_bytes);
  }
  for (int32_t& id : c.block_table)
    id = id < 0 ? std::numeric_limits<int32_t>::max() : static_cast<int32_t>(pages - 1 - id);
  c.args.pages.data = reversed.data();
  const Result result = run_case(c);
  EXPECT_TRUE(same_bits(result.out, expected.out));
  EXPECT_TRUE(same_bits(result.lse, expected.lse));
}

INSTANTIATE_TEST_SUITE_P(Paths, Probe, kPaths, [](const auto& path) { return path_name(path.param); });

}  // namespace
}  // namespace quaver::probes
