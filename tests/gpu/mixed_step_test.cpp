// Mixed steps: prefill chunks and decode rows in one batch, each to its kernel, in one run.
#include <gtest/gtest.h>

#include <cstring>
#include <span>

#include "device_case.h"
#include "testing/metric.h"

namespace quaver::testing {
namespace {

Case mixed_case(std::vector<int32_t> query_lens, std::vector<int32_t> kv_lens, int head_dim, int window) {
  return Case({.query_lens = std::move(query_lens),
               .kv_lens = std::move(kv_lens),
               .num_q_heads = 8,
               .kv = {.num_kv_heads = 2, .head_dim_k = head_dim, .head_dim_v = head_dim, .page_size = 64},
               .window = window,
               .sinks = true,
               .scales = true,
               .seed = 5});
}

AttentionPlan policy_plan(const AttentionProblem& problem) {
  return std::get<AttentionPlan>(plan_attention(problem));
}

class MixedStep : public ::testing::TestWithParam<int> {};

// Four heads a kv head: up to 8 query tokens are decode rows (`split`), 9 and more are prefill (`single`, at 512
// `split`).
TEST_P(MixedStep, EachSequenceHasItsKernelsAccuracy) {
  const int head_dim = GetParam();
  for (const int window : {0, 200}) {
    const Case host = mixed_case({1, 300, 8, 1, 9, 0, 64, 1}, {700, 300, 129, 3000, 500, 20, 64, 0}, head_dim, window);
    DeviceCase device(host);
    const AttentionPlan plan = policy_plan(device.problem);
    ASSERT_EQ(plan.kernel, AttentionKernel::kPrefillFp8);
    DeviceAttention attention(device.problem, plan, query_device(0), device.limits());
    const Outputs mixed = device.run(attention);
    EXPECT_TRUE(mixed == device.run(attention)) << "second run differs";
    const Outputs all_prefill = device.run(prefill_plan(device.problem, plan.precision));
    const OracleOutput expected = host.expected();
    const std::vector<float> values = mixed.values();
    const size_t row = 8 * static_cast<size_t>(head_dim);
    for (size_t b = 0; b + 1 < host.query_start.size(); ++b) {
      SCOPED_TRACE(concat("window ", window, ", sequence ", b));
      const auto first = static_cast<size_t>(host.query_start[b]);
      const size_t tokens = static_cast<size_t>(host.query_start[b + 1]) - first;
      if (tokens == 0) continue;
      if (tokens > 8) {
        EXPECT_EQ(std::memcmp(&mixed.bf16[first * row], &all_prefill.bf16[first * row], 2 * tokens * row), 0);
        continue;
      }
      const auto part = [&](const auto& all) { return std::span(all).subspan(first * row, tokens * row); };
      const Deviation d = deviation<float>(part(values), part(expected.out), head_dim);
      EXPECT_LT(d.first_nonfinite_mismatch, 0);
      EXPECT_LE(d.relative_l2, 4e-3);
    }
    Tolerance limit = tolerance(Precision::kSingle, DType::kBF16);
    limit.lse = 0.15;
    EXPECT_TRUE(lse_close_to<float>(mixed.lse, expected.lse, limit));
  }
}

INSTANTIATE_TEST_SUITE_P(HeadDims, MixedStep, ::testing::Values(64, 128, 256, 512));

// B24: a captured step serves any mix; sequences change sides between replays.
TEST(MixedStep, GraphReplaysAnyMix) {
  const Case host = mixed_case({100, 30, 1, 40}, {400, 600, 70, 900}, 128, 0);
  DeviceCase device(host);
  device.problem.max_query_len = 171;
  const AttentionPlan plan = policy_plan(device.problem);
  DeviceAttention attention(device.problem, plan, query_device(0), device.limits());
  const CudaStream stream = make_stream();
  const CudaGraphExec graph = device.capture(attention, stream.get(), 1);
  const std::vector<std::vector<int32_t>> starts{{0, 100, 130, 131, 171}, {0, 1, 2, 3, 4}, {0, 2, 80, 80, 171}};
  for (const auto& start : starts) {
    overwrite(device.args.query_start, start);
    const Outputs replayed = device.replay(graph, stream.get());
    EXPECT_TRUE(replayed == device.run(plan));
  }
}

}  // namespace
}  // namespace quaver::testing
