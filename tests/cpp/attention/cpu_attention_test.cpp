// The fast CPU path against the float64 oracle, and against itself: the same bits whatever stands beside a row.
#include "attention/cpu/cpu_attention.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cstring>
#include <limits>

#include "core/check.h"
#include "testing/cases.h"
#include "testing/metric.h"

namespace quaver::testing {
namespace {

AttentionPlan plan_of(const AttentionProblem& problem) {
  const auto decision = plan_attention(problem);
  if (const auto* refused = std::get_if<Unsupported>(&decision)) fail(ErrorKind::kUnsupported, refused->reason);
  return std::get<AttentionPlan>(decision);
}

void run(Case& c) {
  c.poison_outputs();
  run_attention(c.problem, plan_of(c.problem), c.args);
}

void expect_matches_oracle(const CaseSpec& spec) {
  Case c(spec);
  run(c);
  const OracleOutput expected = c.expected();
  const Tolerance limit = tolerance(Precision::kFull, spec.out_dtype);
  const std::vector<float> out = c.out_values();
  const int64_t dims = int64_t{spec.kv.head_dim_v};
  EXPECT_TRUE(close_to(std::span<const float>(out), std::span<const double>(expected.out), dims, limit))
      << to_string(c.problem);
  EXPECT_TRUE(lse_close_to(c.lse_values(), std::span<const double>(expected.lse), limit)) << to_string(c.problem);
}

KvLayout layout(KvDtype dtype, int kv_heads, int head_dim, int page_size = 64) {
  return {
      .dtype = dtype, .num_kv_heads = kv_heads, .head_dim_k = head_dim, .head_dim_v = head_dim, .page_size = page_size};
}

constexpr KvDtype kFp8 = KvDtype::kE4M3;
constexpr KvDtype kBf16 = KvDtype::kBF16;

TEST(CpuAttention, RaggedDecodeAndPrefill) {
  for (const KvDtype dtype : {kFp8, kBf16}) {
    for (const DType out : {DType::kF32, DType::kBF16}) {
      const std::vector<int32_t> lengths = ragged_lengths();
      expect_matches_oracle({.query_lens = std::vector<int32_t>(lengths.size(), 1),
                             .kv_lens = lengths,
                             .num_q_heads = 4,
                             .kv = layout(dtype, 2, 64),
                             .out_dtype = out});
      expect_matches_oracle(
          {.query_lens = lengths, .kv_lens = lengths, .num_q_heads = 2, .kv = layout(dtype, 1, 64), .out_dtype = out});
    }
  }
}

}  // namespace
}  // namespace quaver::testing
