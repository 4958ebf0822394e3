// Probes of public bug reports (known-faults.md) on the CPU path: inputs whose right output is known in closed form.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numbers>

#include "attention/cpu_run.h"
#include "core/bf16.h"
#include "core/e4m3.h"
#include "kv_cache/page_format.h"

namespace quaver::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

float zero(int, int64_t, int, int) {
  return 0.0F;
}

float one(int, int64_t, int, int) {
  return 1.0F;
}

// Mask probe: with K = 0 all logits are equal, and V row j is one-hot at dim j.
float one_hot(int, int64_t token, int, int dim) {
  return token == dim ? 1.0F : 0.0F;
}

CaseSpec spec(std::vector<int32_t> query_lens, std::vector<int32_t> kv_lens, int q_heads, int kv_heads, int head_dim) {
  return {.query_lens = std::move(query_lens),
          .kv_lens = std::move(kv_lens),
          .num_q_heads = q_heads,
          .kv = {.num_kv_heads = kv_heads, .head_dim_k = head_dim, .head_dim_v = head_dim, .page_size = 16},
          .softmax_scale = 1.0F,
          .out_dtype = DType::kF32};
}

float out_at(const Case& c, int64_t token, int64_t head, int64_t dim) {
  const int64_t dims = c.problem.kv.head_dim_v;
  return c.out_f32[static_cast<size_t>((token * c.problem.num_q_heads + head) * dims + dim)];
}

float lse_at(const Case& c, int64_t token, int64_t head) {
  return c.lse[static_cast<size_t>(token * c.problem.num_q_heads + head)];
}

// B04: descales by (sequence, kv head), contiguous, broadcast with stride 0 and transposed; decode and prefill rows.
TEST(CpuProbes, B04DescalesPerSequenceAndKvHead) {
  for (const int32_t rows : {1, 30}) {
    CaseSpec s = spec({rows, rows}, {100, 100}, 12, 2, 64);
    s.causal = rows == 1;  // every row then sees 100 keys
    s.softmax_scale = 0.125F;
    s.query = one;
    s.key = [](int, int64_t, int, int) { return 0.5F; };
    s.value = one;
    Case c(s);
    const std::vector<float> by_sequence{1.0F, 0.5F};
    const std::vector<float> by_head{1.0F, 0.5F};
    const std::vector<float> v_transposed{1.0F, 3.0F, 2.0F, 4.0F};  // 1 + 2b + h at h * 2 + b
    c.args.q_descale = {by_sequence.data(), DType::kF32, {2, 2}};
    c.args.q_descale.strides = {1, 0};
    c.args.k_descale = {by_head.data(), DType::kF32, {2, 2}};
    c.args.k_descale.strides = {0, 1};
    c.args.v_descale = {v_transposed.data(), DType::kF32, {2, 2}};
    c.args.v_descale.strides = {1, 2};
    run(c);
    const double lse[2][2] = {{8.605170, 6.605170}, {6.605170, 5.605170}};
    for (int b = 0; b < 2; ++b) {
      for (int head = 0; head < 12; ++head) {
        const int h = head / 6;
        for (int64_t token = b * rows; token < (b + 1) * rows; ++token) {
          EXPECT_NEAR(lse_at(c, token, head), lse[b][h], 1e-5);
          EXPECT_NEAR(out_at(c, token, head, 63), 1 + 2 * b + h, 1e-5);
        }
      }
    }
  }
}

// B05: the scale is honoured on every path, and "none" is exactly 1.
TEST(CpuProbes, B05ScalesOnEveryPath) {
  CaseSpec s = spec({40}, {700}, 2, 1, 64);
  s.causal = false;
  s.query = one;
  s.key = [](int, int64_t, int, int) { return 0.125F; };  // logit 8, 2 after the descale
  s.value = [](int, int64_t, int, int) { return 2.0F; };
  Case c(s);
  const float k_scale = 0.25F;
  const float v_scale = 0.5F;
  const auto expect_right = [&] {
    for (int64_t token = 0; token < 40; ++token) {
      EXPECT_NEAR(lse_at(c, token, 1), std::log(700.0) + 2, 1e-5);
      EXPECT_NEAR(out_at(c, token, 1, 5), 1.0, 1e-6);
    }
  };
  c.args.k_descale = {&k_scale, DType::kF32, {1, 1}};
  c.args.v_descale = {&v_scale, DType::kF32, {1, 1}};
  run(c);
  expect_right();
  c.args.k_descale = c.args.v_descale = {};
  c.args.k_scale = {&k_scale, DType::kF32, {1}};
  c.args.v_scale = {&v_scale, DType::kF32, {1}};
  run(c);
  expect_right();

  c.args.k_scale = c.args.v_scale = {};
  run(c);
  const std::vector<float> none = c.out_f32;
  const float exactly_one = 1.0F;
  c.args.k_scale = c.args.v_scale = {&exactly_one, DType::kF32, {1}};
  c.args.q_descale = c.args.k_descale = c.args.v_descale = {&exactly_one, DType::kF32, {1, 1}};
  run(c);
  EXPECT_EQ(c.out_f32, none);
}

// B12: page ids are values, not sentinels; table entries past the length or left of the window are never looked at.
TEST(CpuProbes, B12SentinelsInTheBlockTable) {
  CaseSpec s = spec({3}, {90}, 2, 1, 64);
  s.window = 20;
  Case c(s);
  run(c);
  const std::vector<float> whole = c.out_f32;
  for (const int32_t unused : {-1, std::numeric_limits<int32_t>::max()}) {
    for (size_t j = 0; j < 4; ++j) c.block_table[j] = unused;  // keys 0 … 63; the window starts at key 68
    for (size_t j = 6; j < c.block_table.size(); ++j) c.block_table[j] = unused;
    run(c);
    EXPECT_EQ(c.out_f32, whole) << unused;
  }
}

TEST(CpuProbes, B12PageZeroIsAPage) {
  CaseSpec s = spec({1}, {32}, 1, 1, 64);
  Case c(s);
  run(c);
  const std::vector<float> before = c.out_f32;
  for (const std::array<int32_t, 2> ids : {std::array{0, 1}, std::array{3, 0}, std::array{2, 4}}) {
    Case moved(s);
    const auto page_bytes = static_cast<size_t>(c.args.pages.stride(0));
    for (size_t j = 0; j < 2; ++j) {
      std::memcpy(moved.pages.data() + static_cast<size_t>(ids[j]) * page_bytes,
                  c.pages.data() + static_cast<size_t>(c.block_table[j]) * page_bytes, page_bytes);
      moved.block_table[j] = ids[j];
    }
    run(moved);
    EXPECT_EQ(moved.out_f32, before);
  }
}

// B14: more queries than keys; rows that see nothing give 0 and -inf.
TEST(CpuProbes, B14MoreQueriesThanKeys) {
  CaseSpec s = spec({5, 130}, {2, 1}, 1, 1, 64);
  s.key = zero;
  s.value = one_hot;
  Case c(s);
  run(c);
  for (int64_t row = 0; row < 5 + 130; ++row) {
    if (row == 3 || row == 4 || row == 134) continue;
    for (int64_t d = 0; d < 64; ++d) EXPECT_EQ(out_at(c, row, 0, d), 0.0F);
    EXPECT_EQ(lse_at(c, row, 0), -kInfinity);
  }
  EXPECT_EQ(out_at(c, 3, 0, 0), 1.0F);
  EXPECT_EQ(out_at(c, 3, 0, 1), 0.0F);
  EXPECT_EQ(lse_at(c, 3, 0), 0.0F);
  EXPECT_EQ(out_at(c, 4, 0, 0), 0.5F);
  EXPECT_EQ(out_at(c, 4, 0, 1), 0.5F);
  EXPECT_NEAR(lse_at(c, 4, 0), std::numbers::ln2, 1e-7);
  EXPECT_EQ(out_at(c, 134, 0, 0), 1.0F);
}

// B16, B17: key p - W is outside the window, key p - W + 1 inside, exactly.
TEST(CpuProbes, B16WindowEdgeIsExact) {
  for (const int32_t kv_len : {1025, 1100, 2050}) {
    for (const int64_t inside : {0, 1}) {
      CaseSpec s = spec({8}, {kv_len}, 2, 1, 256);
      s.window = 1024;
      s.key = zero;
      const int64_t position = kv_len - 1;  // of the last row
      s.value = [=](int, int64_t token, int, int dim) {
        return dim == 0 && token == position - 1024 + inside ? 1.0F : 0.0F;
      };
      Case c(s);
      run(c);
      EXPECT_EQ(out_at(c, 7, 1, 0), inside == 1 ? 1.0F / 1024.0F : 0.0F) << kv_len;
    }
  }
}

TEST(CpuProbes, B17ChunksSeeTheWindowOfEarlierChunks) {
  CaseSpec s = spec({100}, {100}, 1, 1, 128);
  s.window = 16;
  s.key = zero;
  s.value = one_hot;
  Case c(s);
  for (const int64_t chunk : {1, 7, 15, 16, 17, 100}) {
    c.poison_outputs();
    for (int64_t first = 0; first < 100; first += chunk) run_rows(c, 0, first, std::min<int64_t>(first + chunk, 100));
    for (int64_t row = 0; row < 100; ++row) {
      const int64_t oldest = std::max<int64_t>(0, row - 15);
      const float weight = 1.0F / static_cast<float>(row - oldest + 1);
      for (int64_t d = 0; d < 100; ++d) {
        ASSERT_FLOAT_EQ(out_at(c, row, 0, d), oldest <= d && d <= row ? weight : 0.0F) << row << " " << d;
      }
    }
  }
}

// B19: LSE is a natural logarithm for every head, whatever its strides.
TEST(CpuProbes, B19LseIsNatural) {
  for (const int32_t rows : {1, 3}) {
    CaseSpec s = spec({rows, rows, rows}, {10, 100, 1000}, 8, 2, 64);
    s.key = zero;
    Case c(s);
    const int64_t tokens = int64_t{3} * rows;
    std::vector<float> padded(static_cast<size_t>(tokens * 11), -7.0F);
    c.args.lse = {padded.data(), DType::kF32, {tokens, 8}};
    c.args.lse.strides = {11, 1};
    run(c);
    const double expected[] = {2.302585, 4.605170, 6.907755};
    for (int64_t token = 0; token < tokens; ++token) {
      for (int64_t head = 0; head < 8; ++head) {
        const double keys = std::exp(expected[token / rows]) - static_cast<double>(rows - 1 - token % rows);
        EXPECT_NEAR(padded[static_cast<size_t>(token * 11 + head)], std::log(keys), 2e-6);
      }
      for (int64_t pad = 8; pad < 11; ++pad) EXPECT_EQ(padded[static_cast<size_t>(token * 11 + pad)], -7.0F);
    }
  }
}

// B19: splits are merged by their mass: 3,072 keys with V = 0 and 64 with V = 1.
TEST(CpuProbes, B19SplitsMergeByMass) {
  CaseSpec s = spec({1}, {3136}, 1, 1, 64);
  s.key = zero;
  s.value = [](int, int64_t token, int, int) { return token < 3072 ? 0.0F : 1.0F; };
  Case c(s);
  run(c);
  EXPECT_NEAR(out_at(c, 0, 0, 0), 0.020408, 1e-6);
  EXPECT_NEAR(lse_at(c, 0, 0), 8.050703, 1e-6);
}

// B20: slices of a fused QKV buffer in, padded rows out; the same bits, and nothing written between the rows.
TEST(CpuProbes, B20StridedViews) {
  CaseSpec s = spec({5, 1, 9}, {5, 77, 40}, 4, 2, 64);
  Case c(s);
  run(c);
  const std::vector<float> dense = c.out_f32;
  const std::vector<float> dense_lse = c.lse;
  const int64_t tokens = 15;
  const int64_t q_row = (4 + 2 * 2) * 64;
  std::vector<Bf16> fused(static_cast<size_t>(tokens * q_row + 3), to_bf16(kInfinity));
  std::vector<float> out(static_cast<size_t>(tokens * 5 * 70), -7.0F);
  for (const int64_t shift : {0, 1, 3}) {  // elements: base addresses of 2 and 6 bytes past an aligned one too
    for (int64_t t = 0; t < tokens; ++t) {
      std::memcpy(fused.data() + shift + t * q_row, c.q_bf16.data() + t * 256, 512);
    }
    c.args.q = {fused.data() + shift, DType::kBF16, {tokens, 4, 64}};
    c.args.q.strides = {q_row, 64, 1};
    c.args.out = {out.data(), DType::kF32, {tokens, 4, 64}};
    c.args.out.strides = {int64_t{5} * 70, 70, 1};
    run(c);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t h = 0; h < 5; ++h) {
        for (int64_t d = 0; d < 70; ++d) {
          const float value = out[static_cast<size_t>((t * 5 + h) * 70 + d)];
          const bool pad = h == 4 || d >= 64;
          ASSERT_EQ(value, pad ? -7.0F : dense[static_cast<size_t>((t * 4 + h) * 64 + d)]) << t << " " << h << " " << d;
        }
      }
    }
    EXPECT_EQ(c.lse, dense_lse);
  }
}

// B21: odd GQA ratios read their own kv head: V names the (sequence, kv head).
TEST(CpuProbes, B21RoutingOfGqaGroups) {
  const std::pair<int, int> heads[] = {{12, 2}, {28, 4}, {24, 2}, {40, 8}, {16, 1}, {48, 1}, {9, 3}, {71, 1}};
  for (const auto& [q_heads, kv_heads] : heads) {
    for (const int32_t rows : {1, 10, 11, 12}) {
      CaseSpec s = spec({rows, rows}, {rows + 3, 20}, q_heads, kv_heads, 16);
      s.value = [](int b, int64_t, int h, int) { return static_cast<float>(1 + 2 * b + h); };
      Case c(s);
      run(c);
      for (int64_t token = 0; token < 2 * rows; ++token) {
        for (int head = 0; head < q_heads; ++head) {
          const auto b = static_cast<int>(token / rows);
          ASSERT_NEAR(out_at(c, token, head, 15), 1 + 2 * b + head / (q_heads / kv_heads), 1e-5);
        }
      }
    }
  }
}

// B22: every head dim is right to the last column, K and V of different widths too, or refused by the plan.
TEST(CpuProbes, B22HeadDims) {
  const std::pair<int, int> uneven[] = {{192, 128}, {64, 512}, {256, 128}};
  std::vector<std::pair<int, int>> dims(std::begin(uneven), std::end(uneven));
  for (const int d : {16, 40, 64, 72, 80, 96, 100, 120, 128, 136, 192, 200, 256, 320, 512}) dims.emplace_back(d, d);
  for (const KvDtype dtype : {KvDtype::kE4M3, KvDtype::kBF16}) {
    for (const auto& [dim_k, dim_v] : dims) {
      CaseSpec s = spec({3, 1}, {7, 130}, 16, 4, dim_k);
      s.kv.dtype = dtype;
      s.kv.head_dim_v = dim_v;
      if (dtype == KvDtype::kE4M3 && (dim_k % 16 != 0 || dim_v % 16 != 0)) {
        const AttentionProblem problem{.num_q_heads = 16, .kv = s.kv, .kernel = {}};
        EXPECT_TRUE(std::holds_alternative<Unsupported>(plan_attention(problem))) << dim_k;
        continue;
      }
      s.softmax_scale = 0.05F;
      s.value = [](int, int64_t, int, int d) { return static_cast<float>(d % 8 + 1); };
      Case c(s);
      run(c);
      for (int64_t token = 0; token < 4; ++token) {
        for (int64_t head = 0; head < 16; ++head) {
          for (int64_t d = 0; d < dim_v; ++d) {
            ASSERT_NEAR(out_at(c, token, head, d), static_cast<double>(d % 8 + 1), 1e-5) << dim_k << " " << d;
          }
        }
      }
    }
  }
}

// B23: the cap sees the descaled logit and multiplies itself, not the score.
TEST(CpuProbes, B23Softcap) {
  CaseSpec s = spec({1}, {2}, 1, 1, 64);
  s.softcap = 4.0F;
  s.query = [](int, int64_t, int, int d) { return d == 0 ? 8.0F : 0.0F; };
  s.key = [](int, int64_t token, int, int d) { return d == 0 ? (token == 0 ? 1.0F : 0.5F) : 0.0F; };
  s.value = one_hot;
  Case c(s);
  const float two = 2.0F;
  const float half = 0.5F;
  for (const bool descaled : {false, true}) {
    if (descaled) {
      c.args.q_descale = {&two, DType::kF32, {1, 1}};
      c.args.k_descale = {&half, DType::kF32, {1, 1}};
    }
    run(c);
    EXPECT_NEAR(out_at(c, 0, 0, 0), 0.692053, 1e-6);
    EXPECT_NEAR(lse_at(c, 0, 0), 4.224203, 1e-6);
  }
  s.softcap = 0.0F;
  Case uncapped(s);
  run(uncapped);
  EXPECT_NEAR(out_at(uncapped, 0, 0, 0), 0.982014, 1e-6);
}

// B23 with sinks: a row that sees only its sink has O = 0 and the sink as LSE.
TEST(CpuProbes, SinkOnlyRows) {
  CaseSpec s = spec({2, 1}, {0, 1}, 2, 1, 64);
  s.sinks = true;
  s.softcap = 4.0F;
  s.key = zero;
  s.value = one;
  Case c(s);
  run(c);
  for (int64_t head = 0; head < 2; ++head) {
    const float sink = c.sinks[static_cast<size_t>(head)];
    for (int64_t row = 0; row < 2; ++row) {
      EXPECT_EQ(out_at(c, row, head, 3), 0.0F);
      EXPECT_NEAR(lse_at(c, row, head), sink, 1e-6);
    }
    EXPECT_NEAR(lse_at(c, 2, head), std::log(1.0 + std::exp(double{sink})), 1e-6);
    EXPECT_NEAR(out_at(c, 2, head, 3), 1.0 / (1.0 + std::exp(double{sink})), 1e-6);
  }
}

// A NaN in a stored key stays with its own sequence and kv head; rows that see it say so in O and LSE.
TEST(CpuProbes, NanKeysAreContained) {
  CaseSpec s = spec({1, 3}, {90, 50}, 4, 2, 64);
  Case c(s);
  run(c);
  const std::vector<float> clean = c.out_f32;
  const KvLayout& kv = c.problem.kv;
  const auto page = static_cast<int64_t>(c.block_table[1]) * c.args.pages.stride(0);  // keys 16 … 31 of sequence 0
  c.pages[static_cast<size_t>(page + page_format::k_offset(kv, 1, 4, 7))] = kE4M3Nan;
  run(c);
  for (int64_t token = 0; token < 4; ++token) {
    for (int64_t head = 0; head < 4; ++head) {
      const bool hit = token == 0 && head >= 2;
      EXPECT_EQ(std::isnan(lse_at(c, token, head)), hit);
      for (int64_t d = 0; d < 64; ++d) {
        const float before = clean[static_cast<size_t>((token * 4 + head) * 64 + d)];
        EXPECT_TRUE(hit ? std::isnan(out_at(c, token, head, d)) : out_at(c, token, head, d) == before);
      }
    }
  }
}

}  // namespace
}  // namespace quaver::testing
