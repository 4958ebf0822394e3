// Long contexts and large offsets in the prefill kernel.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "device_case.h"
#include "kv_cache/page_format.h"
#include "testing/metric.h"
#include "testing/random.h"

namespace quaver::testing {
namespace {

KvLayout layout(int kv_heads, int head_dim, int page_size) {
  return {.num_kv_heads = kv_heads, .head_dim_k = head_dim, .head_dim_v = head_dim, .page_size = page_size};
}

// Equal weights over a million keys: an accumulator that is not begun anew every tile would lose a quarter of O.
TEST(PrefillLimits, MoreThanAMillionKeys) {
  constexpr int kLength = (1 << 20) + 1;
  const Case host({.query_lens = {40},
                   .kv_lens = {kLength},
                   .num_q_heads = 1,
                   .kv = layout(1, 64, 128),
                   .out_dtype = DType::kF32,
                   .query = [](int, int64_t, int, int) { return 1.0F; },
                   .key = [](int, int64_t, int, int) { return 0.0F; },
                   .value = [](int, int64_t token, int, int d) { return d == token % 64 ? 1.0F : 0.0F; }});
  DeviceCase device(host);
  const Outputs outputs = device.run(prefill_plan(device.problem, Precision::kSingle));
  for (size_t row = 0; row < 40; ++row) {
    const auto keys = static_cast<float>(kLength - 40 + static_cast<int>(row) + 1);
    EXPECT_NEAR(outputs.lse[row], std::log(keys), 1e-4F);
    for (size_t d = 0; d < 64; ++d) EXPECT_NEAR(outputs.f32[row * 64 + d], 1.0F / 64, 1e-5F) << "column " << d;
  }
}

TEST(PrefillLimits, NearlyUniformWeightsOver131072Keys) {
  Random random(3);
  const Case host({.query_lens = {33},
                   .kv_lens = {131072},
                   .num_q_heads = 1,
                   .kv = layout(1, 128, 64),
                   .softmax_scale = 0.01F,
                   .query = [&](int, int64_t, int, int) { return random.normal(); }});
  DeviceCase device(host);
  const OracleOutput expected = host.expected();
  for (const Precision precision : {Precision::kSingle, Precision::kSplit}) {
    const Outputs outputs = device.run(prefill_plan(device.problem, precision));
    const Deviation d = deviation<float>(outputs.values(), expected.out, 128);
    std::printf("131072 keys, %s: relative L2 %.2e, gain %.4f\n", precision_name(precision).data(), d.relative_l2,
                d.gain);
    EXPECT_LE(d.relative_l2, precision == Precision::kSplit ? 2.2e-3 : 4e-2);
    EXPECT_TRUE(lse_close_to<float>(outputs.lse, expected.lse, {.lse = 1e-3}));
  }
}

/// The same step with a plan that never cuts items over their keys.
Outputs uncut(DeviceCase& device, Precision precision) {
  device.problem.batch_invariant = true;
  Outputs outputs = device.run(prefill_plan(device.problem, precision));
  device.problem.batch_invariant = false;
  return outputs;
}

// Few rows over long contexts: items are cut over their keys, which moves nothing but FP32 sums. Beside them a prompt,
// a sequence without keys, rows that see no key at all, and parts in which some rows see nothing (window).
TEST(PrefillSplits, AreTheSumOfTheirParts) {
  for (const auto& [head_dim, precision] : prefill_modes()) {
    for (const int window : {0, 2000}) {
      SCOPED_TRACE(concat("d ", head_dim, " ", precision_name(precision), " window ", window));
      const Case host({.query_lens = {64, 40, 300, 50, 37},
                       .kv_lens = {6000, 2500, 300, 0, 20},
                       .num_q_heads = 2,
                       .kv = layout(1, head_dim, 64),
                       .window = window,
                       .sinks = true,
                       .scales = true,
                       .descales = true,
                       .out_dtype = DType::kF32,
                       .seed = 7});
      DeviceCase device(host);
      const Outputs whole = uncut(device, precision);
      const AttentionPlan plan = prefill_plan(device.problem, precision);
      DeviceAttention attention(device.problem, plan, query_device(0), device.limits());
      const Outputs parts = device.run(attention);
      EXPECT_TRUE(parts == device.run(attention)) << "second run differs";
      EXPECT_FALSE(parts == whole) << "nothing was cut";
      EXPECT_LE(relative_l2(parts.f32, whole.f32), 2e-5);  // E4M3 subnormals of P sit on another grid in another part
      for (size_t i = 0; i < whole.lse.size(); ++i) {
        if (parts.lse[i] == whole.lse[i]) continue;  // -inf too
        EXPECT_NEAR(parts.lse[i], whole.lse[i], 2e-5F) << "row " << i;
      }
    }
  }
}

// B24: captured with lengths that are not cut, replayed with some that are, and back.
TEST(PrefillSplits, GraphReplaysCutAndUncutSteps) {
  const Case host(
      {.query_lens = {40, 40, 90}, .kv_lens = {9000, 4000, 90}, .num_q_heads = 2, .kv = layout(1, 128, 64)});
  DeviceCase device(host);
  device.problem.max_query_len = 170;
  const AttentionPlan plan = prefill_plan(device.problem, Precision::kSplit);
  DeviceAttention attention(device.problem, plan, query_device(0), device.limits());
  const CudaStream stream = make_stream();
  const CudaGraphExec graph = device.capture(attention, stream.get(), 2);
  for (const std::vector<int32_t>& lengths : {std::vector<int32_t>{9000, 4000, 90}, {700, 500, 90}, {40, 4000, 0}}) {
    overwrite(device.args.seq_lens, lengths);
    const Outputs replayed = device.replay(graph, stream.get());
    EXPECT_TRUE(replayed == device.run(plan));
  }
}

// A batch-invariant row has the same bits alone and beside others.
TEST(PrefillSplits, BatchInvariantRowsDoNotDependOnTheStep) {
  const auto make = [](std::vector<int32_t> query_lens, std::vector<int32_t> kv_lens) {
    return Case({.query_lens = std::move(query_lens),
                 .kv_lens = std::move(kv_lens),
                 .num_q_heads = 2,
                 .kv = layout(1, 256, 64),
                 .query = [](int, int64_t row, int head,
                             int d) { return static_cast<float>((row * 11 + head * 5 + d * 7) % 19 - 9); },
                 .key = [](int, int64_t token, int, int d) { return static_cast<float>((token * 7 + d * 3) % 13 - 6); },
                 .value = [](int, int64_t token, int, int d) { return static_cast<float>((token + d) % 17 - 8); }});
  };
  const Case alone = make({40}, {9000});
  const Case beside = make({40, 700}, {9000, 700});
  DeviceCase first(alone);
  DeviceCase second(beside);
  ASSERT_TRUE(std::equal(alone.q_bf16.begin(), alone.q_bf16.end(), beside.q_bf16.begin()));
  const Outputs a = uncut(first, Precision::kSingle);
  const Outputs b = uncut(second, Precision::kSingle);
  EXPECT_EQ(std::memcmp(a.bf16.data(), b.bf16.data(), sizeof(Bf16) * a.bf16.size()), 0);
}

// B11: K and V share a page; with 16 heads of 256 columns and 64 tokens offsets pass 2^31 at page 4,096, 2^32 at 8,192.
TEST(PrefillLimits, PoolsBeyond32BitOffsets) {
  const Case host({.query_lens = {40}, .kv_lens = {190}, .num_q_heads = 32, .kv = layout(16, 256, 64)});
  DeviceCase device(host);
  const AttentionPlan plan = prefill_plan(device.problem, Precision::kSingle);
  expect_same_in_a_large_pool(host, device, plan);
}

}  // namespace
}  // namespace quaver::testing
