// The attention kernels with their schedules, launches and workspaces against the CPU emulation of their arithmetic
// (FP8 kernels) and float64 (general kernel). Unused page bytes are NaN codes, outputs are poisoned, and threads, CTAs
// and copies take their turns in several orders, which must not change a bit.
#include <gtest/gtest.h>

#include <cmath>

#include "attention/cpu/emulated.h"
#include "device_case.h"
#include "shape.h"
#include "simt/launch.h"
#include "testing/metric.h"

namespace quaver::testing {
namespace {

Case make_case(const Shape& shape, KvLayout kv) {
  return Case(spec_of(shape, kv, 3));
}

/// As the arithmetic of the kernel says, in any order. `plan_for(problem)` may write into the problem.
template <class PlanFor>
void expect_emulated(const Shape& shape, int head_dim, PlanFor plan_for) {
  SCOPED_TRACE(shape.name);
  Case host = make_case(shape, {.head_dim_k = head_dim, .head_dim_v = head_dim});
  DeviceCase device(host);
  const AttentionPlan plan = plan_for(device.problem);
  attention_emulated(host.problem, plan, host.args);
  DeviceAttention attention(device.problem, plan, query_device(0), device.limits());
  const Outputs outputs = device.run(attention);
  EXPECT_LE(relative_l2(outputs.values(), host.out_values()), plan.precision == Precision::kSplit ? 5e-4 : 1e-2);
  for (size_t i = 0; i < host.lse.size(); ++i) {
    const bool near = std::abs(outputs.lse[i] - host.lse[i]) <= 2e-3F || outputs.lse[i] == host.lse[i];
    EXPECT_TRUE(near) << "LSE of row " << i << ": " << outputs.lse[i] << ", expected " << host.lse[i];
  }
  for (const uint64_t seed : {1, 2}) {
    const simt::RandomOrder order(seed);
    EXPECT_TRUE(outputs == device.run(attention)) << "another order of threads, seed " << seed;
  }
}

class DecodeDims : public ::testing::TestWithParam<std::tuple<int, Precision>> {};

TEST_P(DecodeDims, IsItsArithmetic) {
  const auto [head_dim, precision] = GetParam();
  const Shape shapes[] = {
      {.name = "one", .query_lens = {1}, .kv_lens = {1}},
      {.name = "ragged",  // B14: more queries than keys
       .query_lens = {1, 3, 0, 2, 1, 2},
       .kv_lens = {300, 129, 40, 64, 0, 1},
       .kv_heads = 2,
       .group = 3,
       .page_size = 16,
       .sinks = true,
       .scales = true,
       .descales = true},
      {.name = "window",
       .query_lens = {2, 1},
       .kv_lens = {517, 128},
       .kv_heads = 1,
       .group = 2,
       .page_size = 32,
       .window = 200,
       .softcap = 30.0F},
      {.name = "up to four rows",
       .query_lens = {1, 0, 1, 1},
       .kv_lens = {700, 33, 64, 0},
       .kv_heads = 2,
       .group = 3,
       .page_size = 16,
       .sinks = true,
       .scales = true,
       .descales = true},
      {.name = "up to eight rows",
       .query_lens = {2, 1, 3, 1},
       .kv_lens = {611, 129, 2, 16},
       .kv_heads = 2,
       .group = 2,
       .page_size = 64,
       .window = 300,
       .sinks = true},
      {.name = "many rows", .query_lens = {8}, .kv_lens = {403}, .group = 4, .page_size = 128},
  };
  for (const Shape& shape : shapes) {
    expect_emulated(shape, head_dim, [&](const AttentionProblem& problem) { return decode_plan(problem, precision); });
  }
}

TEST(Decode, FixedSplits) {
  for (const Precision precision : {Precision::kSplit, Precision::kSingle}) {
    expect_emulated({.name = "splits", .query_lens = {1, 1}, .kv_lens = {4500, 70}, .group = 2}, 64,
                    [&](const AttentionProblem& problem) { return decode_plan(problem, precision, true); });
  }
}

INSTANTIATE_TEST_SUITE_P(HeadDims, DecodeDims,
                         ::testing::Combine(::testing::Values(64, 256),
                                            ::testing::Values(Precision::kSplit, Precision::kSingle)));

class PrefillModes : public ::testing::TestWithParam<PrefillMode> {};

TEST_P(PrefillModes, AreTheirArithmetic) {
  const auto [head_dim, precision] = GetParam();
  const Shape shapes[] = {
      {.name = "one", .query_lens = {1}, .kv_lens = {1}},
      {.name = "ragged",  // B14: more queries than keys
       .query_lens = {50, 0, 5, 33, 1},
       .kv_lens = {150, 40, 2, 33, 300},
       .kv_heads = 1,
       .group = 3,
       .page_size = 16,
       .sinks = true,
       .scales = true,
       .descales = true},
      {.name = "window",
       .query_lens = {130},
       .kv_lens = {400},
       .kv_heads = 2,
       .page_size = 128,
       .window = 100,
       .softcap = 30.0F},
  };
  for (const Shape& shape : shapes) {
    expect_emulated(shape, head_dim, [&](AttentionProblem& problem) { return prefill_plan(problem, precision); });
  }
}

// The two multiprocessors have one long item beside short ones: it is cut over its keys. Rows of the last sequence see
// no key, rows of the first none of some part when there is a window.
TEST_P(PrefillModes, PartsAddUp) {
  const auto [head_dim, precision] = GetParam();
  for (const int window : {0, 1100}) {
    SCOPED_TRACE(window);
    const Case host = make_case({.name = "parts",
                                 .query_lens = {21, 3, 5},
                                 .kv_lens = {1500, 20, 0},
                                 .group = 2,
                                 .window = window,
                                 .sinks = true,
                                 .scales = true,
                                 .descales = true},
                                {.head_dim_k = head_dim, .head_dim_v = head_dim});
    DeviceCase device(host);
    const AttentionPlan plan = prefill_plan(device.problem, precision);
    DeviceAttention attention(device.problem, plan, query_device(0), device.limits());
    const Outputs parts = device.run(attention);
    device.problem.batch_invariant = true;  // nothing is cut
    const Outputs whole = device.run(plan);
    EXPECT_FALSE(parts == whole) << "expected other FP32 sums";
    EXPECT_LE(relative_l2(parts.values(), whole.values()), 2e-5);
    for (size_t i = 0; i < whole.lse.size(); ++i) {
      if (parts.lse[i] == whole.lse[i]) continue;  // -inf too
      EXPECT_NEAR(parts.lse[i], whole.lse[i], 2e-5F) << "row " << i;
    }
    const simt::RandomOrder order(3);
    EXPECT_TRUE(parts == device.run(attention)) << "another order of threads";
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, PrefillModes,
                         ::testing::Values(PrefillMode{64, Precision::kSingle}, PrefillMode{64, Precision::kSplit},
                                           PrefillMode{256, Precision::kSingle}, PrefillMode{256, Precision::kSplit},
                                           PrefillMode{512, Precision::kSingle}, PrefillMode{512, Precision::kSplit}));

TEST(General, MatchesFloat64) {
  const Shape shapes[] = {
      {.name = "ragged",
       .query_lens = {3, 1, 0, 2},
       .kv_lens = {70, 129, 5, 1},
       .kv_heads = 2,
       .group = 3,
       .page_size = 16,
       .sinks = true,
       .scales = true,
       .descales = true},
      {.name = "window",
       .query_lens = {9},
       .kv_lens = {200},
       .group = 2,
       .page_size = 32,
       .window = 50,
       .softcap = 30.0F},
  };
  for (const KvDtype dtype : {KvDtype::kE4M3, KvDtype::kBF16}) {
    for (const Shape& shape : shapes) {
      SCOPED_TRACE(shape.name);
      const Case host = make_case(shape, {.dtype = dtype, .head_dim_k = 80, .head_dim_v = 48});
      DeviceCase device(host);
      device.problem.kernel = AttentionKernel::kGeneral;
      const auto plan = std::get<AttentionPlan>(plan_attention(device.problem));
      const Outputs outputs = device.run(plan);
      const OracleOutput expected = host.expected();
      const Tolerance limit = tolerance(Precision::kFull, DType::kF32);
      EXPECT_TRUE(close_to<float>(outputs.values(), expected.out, 48, limit));
      EXPECT_TRUE(lse_close_to<float>(outputs.lse, expected.lse, limit));
      const simt::RandomOrder order(1);
      EXPECT_TRUE(outputs == device.run(plan));
    }
  }
}

}  // namespace
}  // namespace quaver::testing
