// Long contexts and large offsets in the prefill kernel.
#include <gtest/gtest.h>

#include <cmath>

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
  const Outputs outputs = device.run(prefill_plan(device.problem, Precision::kSingle));
  const OracleOutput expected = host.expected();
  const Deviation d = deviation<float>(outputs.values(), expected.out, 128);
  std::printf("131072 keys: relative L2 %.2e, gain %.4f\n", d.relative_l2, d.gain);
  EXPECT_LE(d.relative_l2, 4e-2);
  EXPECT_TRUE(lse_close_to<float>(outputs.lse, expected.lse, {.lse = 1e-3}));
}

// B11: K and V share a page; with 16 heads of 256 columns and 64 tokens offsets pass 2^31 at page 4,096, 2^32 at 8,192.
TEST(PrefillLimits, PoolsBeyond32BitOffsets) {
  const Case host({.query_lens = {40}, .kv_lens = {190}, .num_q_heads = 32, .kv = layout(16, 256, 64)});
  DeviceCase device(host);
  const AttentionPlan plan = prefill_plan(device.problem, Precision::kSingle);
  const Outputs expected = device.run(plan);
  constexpr int64_t kPages = 8300;
  const auto page_bytes = static_cast<size_t>(page_format::page_bytes(host.problem.kv));
  const DeviceBuffer<uint8_t> pool(kPages * static_cast<int64_t>(page_bytes));
  check_cuda(cudaMemset(pool.data(), 0x7F, pool.bytes()), "cudaMemset");
  const int32_t placements[2][3] = {{4095, 4096, 4097}, {8191, 8192, 8299}};
  for (const auto& pages : placements) {
    SCOPED_TRACE(pages[1]);
    std::vector<int32_t> table = host.block_table;
    for (size_t i = 0; i < 3; ++i) {
      check_cuda(cudaMemcpy(pool.data() + page_bytes * static_cast<size_t>(pages[i]),
                            host.pages.data() + page_bytes * static_cast<size_t>(host.block_table[i]), page_bytes,
                            cudaMemcpyHostToDevice),
                 "cudaMemcpy");
      table[i] = pages[i];
    }
    const auto device_table = to_device(table);
    device.args.block_table.data = device_table.data();
    device.args.pages =
        ConstTensorView(pool.data(), DType::kU8, {kPages, static_cast<int64_t>(page_bytes)}, device.args.q.device);
    EXPECT_TRUE(expected == device.run(plan));
  }
}

}  // namespace
}  // namespace quaver::testing
