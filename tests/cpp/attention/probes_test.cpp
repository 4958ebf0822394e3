// The probes of public bug reports (B..: see the names), through the oracle and both modes of the emulation, on pages.
// Expected values are closed forms.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "attention/cpu/emulated.h"
#include "kv_cache/page_format.h"
#include "testing/cases.h"
#include "testing/random.h"

namespace quaver {
namespace {

using testing::Case;
using testing::CaseSpec;
using testing::Element;

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Result {
  std::vector<float> out;
  std::vector<float> lse;
};

enum class Path : uint8_t { kOracle, kSplit, kSingle, kSplitCut, kSingleCut };

std::string path_name(Path path) {
  switch (path) {
    case Path::kOracle: return "oracle";
    case Path::kSplit: return "split";
    case Path::kSingle: return "single";
    case Path::kSplitCut: return "split_in_4";
    case Path::kSingleCut: return "single_in_4";
  }
  return "unknown";
}

Result run(Case& c, Path path) {
  if (path == Path::kOracle) {
    const OracleOutput result = c.expected();
    return {.out = {result.out.begin(), result.out.end()}, .lse = {result.lse.begin(), result.lse.end()}};
  }
  const bool single = path == Path::kSingle || path == Path::kSingleCut;
  c.poison_outputs();
  attention_emulated(c.problem,
                     {.precision = single ? Precision::kSingle : Precision::kSplit,
                      .num_splits = path == Path::kSplitCut || path == Path::kSingleCut ? 4 : 1},
                     c.args);
  return {.out = c.out_values(), .lse = c.lse};
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

Element constant(float value) {
  return [value](int, int64_t, int, int) { return value; };
}

Element one_hot(int dim) {
  return [dim](int, int64_t token, int, int d) { return token % dim == d ? 1.0F : 0.0F; };
}

CaseSpec spec(int q_heads, int kv_heads, int head_dim, std::vector<int32_t> query_lens, std::vector<int32_t> kv_lens) {
  return {.query_lens = std::move(query_lens),
          .kv_lens = std::move(kv_lens),
          .num_q_heads = q_heads,
          .kv = {.num_kv_heads = kv_heads, .head_dim_k = head_dim, .head_dim_v = head_dim, .page_size = 16},
          .softmax_scale = 1.0F,
          .out_dtype = DType::kF32};
}

class Probe : public ::testing::TestWithParam<Path> {
 protected:
  static Result run_case(Case& c) { return run(c, GetParam()); }
  static bool rounds_p() { return GetParam() == Path::kSingle || GetParam() == Path::kSingleCut; }
  /// Largest relative rounding of one weight: E4M3 keeps 4 significant bits, hi + lo/16 eight. Where all weights are
  /// equal they round alike, and O is off by as much, because the normaliser adds the unrounded ones.
  static float weight_error() {
    if (GetParam() == Path::kOracle) return 1e-6F;
    return rounds_p() ? 0x1p-4F : 0x1p-8F;
  }
};

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

// ---- C: lengths, masks, splits -------------------------------------------------------------------------------------

// B14: more queries than keys.
TEST_P(Probe, B14RowsThatSeeNothing) {
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
TEST_P(Probe, B16WindowEdge) {
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
TEST_P(Probe, B16EightRowsEqualEightCalls) {
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
TEST_P(Probe, B19LseIsNaturalForEveryHead) {
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

TEST_P(Probe, B19PartsMergeByLse) {
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
TEST_P(Probe, B22EveryColumnOfEveryHeadDim) {
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
TEST_P(Probe, B23Softcap) {
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
TEST_P(Probe, Sinks) {
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

INSTANTIATE_TEST_SUITE_P(Paths, Probe,
                         ::testing::Values(Path::kOracle, Path::kSplit, Path::kSingle, Path::kSplitCut,
                                           Path::kSingleCut),
                         [](const auto& path) { return path_name(path.param); });

// ---- NaN containment -----------------------------------------------------------------------------------------------

// Two sequences of two kv heads; 0x7F everywhere but in their tokens is already there (testing/cases.h).
class NanContainment : public ::testing::TestWithParam<Precision> {
 protected:
  static constexpr int kDim = 64;
  static CaseSpec base() {
    CaseSpec s = spec(4, 2, kDim, {3, 2}, {150, 40});
    s.softmax_scale = 0.125F;
    s.window = 100;
    return s;
  }
  static Result emulate(Case& c) {
    c.poison_outputs();
    attention_emulated(c.problem, EmulationOptions{.precision = GetParam()}, c.args);
    return {.out = c.out_values(), .lse = c.lse};
  }
  static uint8_t* token_byte(Case& c, int sequence, int64_t token, int head, bool value) {
    const KvLayout& kv = c.problem.kv;
    const int64_t page =
        c.block_table[static_cast<size_t>(sequence * c.args.block_table.dim(1) + token / kv.page_size)];
    const auto slot = static_cast<int>(token % kv.page_size);
    return c.pages.data() + page * c.args.pages.dim(1) +
           (value ? page_format::v_offset(kv, head, slot, 5) : page_format::k_offset(kv, head, slot, 5));
  }
};

// Tokens past the end and left of every row's window may hold anything.
TEST_P(NanContainment, BytesThatNoRowSeesNeverMatter) {
  Case clean(base());
  const Result expected = emulate(clean);
  for (const float value : expected.out) ASSERT_TRUE(std::isfinite(value));
  Case dirty(base());
  // sequence 0: rows sit at 147 … 149, so keys before 147 - 99 = 48 are outside every window
  for (int64_t token = 0; token < 48; ++token) {
    for (int head = 0; head < 2; ++head) {
      *token_byte(dirty, 0, token, head, true) = 0x7F;
      *token_byte(dirty, 0, token, head, false) = 0xFF;
    }
  }
  const Result result = emulate(dirty);
  EXPECT_TRUE(same_bits(result.out, expected.out));
  EXPECT_TRUE(same_bits(result.lse, expected.lse));
}

// A NaN in a stored token reaches rows of the same sequence and kv head only. In K: the row and its LSE are NaN. In V:
// the column is NaN, the LSE does not know.
TEST_P(NanContainment, AStoredNanStaysInItsSequenceAndHead) {
  Case clean(base());
  const Result expected = emulate(clean);
  for (const bool value : {false, true}) {
    Case c(base());
    *token_byte(c, 0, 120, 1, value) = 0x7F;
    const Result result = emulate(c);
    for (size_t row = 0; row < result.lse.size(); ++row) {
      const bool touched = row < 12 && row % 4 >= 2;  // sequence 0 has 3 tokens; query heads 2, 3 read kv head 1
      for (size_t d = 0; d < kDim; ++d) {
        const float out = result.out[row * kDim + d];
        if (touched && (!value || d == 5)) {
          EXPECT_TRUE(std::isnan(out)) << "row " << row << " dim " << d;
        } else {
          EXPECT_EQ(out, expected.out[row * kDim + d]) << "row " << row << " dim " << d;
        }
      }
      if (touched && !value) {
        EXPECT_TRUE(std::isnan(result.lse[row]));
      } else {
        EXPECT_EQ(result.lse[row], expected.lse[row]);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, NanContainment, ::testing::Values(Precision::kSplit, Precision::kSingle),
                         [](const auto& mode) { return std::string(precision_name(mode.param)); });

}  // namespace
}  // namespace quaver
