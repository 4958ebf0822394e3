// B11: offsets beyond 2^31 and 2^32 bytes, batches beyond 65,535 and a million keys.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "device_case.h"
#include "kv_cache/page_format.h"

namespace quaver::testing {
namespace {

KvLayout layout(int kv_heads, int head_dim, int page_size) {
  return {.num_kv_heads = kv_heads, .head_dim_k = head_dim, .head_dim_v = head_dim, .page_size = page_size};
}

// K and V share a page: with 16 heads of 256 columns and 64 tokens offsets pass 2^31 at page 4,096, 2^32 at 8,192.
TEST(DecodeLimits, PoolsBeyond32BitOffsets) {
  const Case host({.query_lens = {1}, .kv_lens = {190}, .num_q_heads = 32, .kv = layout(16, 256, 64)});
  DeviceCase device(host);
  const AttentionPlan plan = decode_plan(device.problem, Precision::kSplit);
  expect_same_in_a_large_pool(host, device, plan);
}

TEST(DecodeLimits, BatchesBeyond65535) {
  for (const size_t batch : {size_t{65535}, size_t{65536}, size_t{70000}}) {
    for (const bool batch_invariant : {false, true}) {
      SCOPED_TRACE(concat(batch, batch_invariant ? " fixed splits" : " even cut"));
      const Case host({.query_lens = std::vector<int32_t>(batch, 1),
                       .kv_lens = std::vector<int32_t>(batch, 1),
                       .num_q_heads = 2,
                       .kv = layout(1, 64, 16),
                       .key = [](int, int64_t, int, int) { return 0.5F; },
                       .value = [](int b, int64_t, int, int) { return static_cast<float>(1 + b % 16); }});
      DeviceCase device(host);
      const Outputs outputs = device.run(decode_plan(device.problem, Precision::kSplit, batch_invariant));
      for (size_t b = 0; b < batch; ++b) {
        for (size_t i = 0; i < 128; i += 63) {
          ASSERT_EQ(to_float(outputs.bf16[b * 128 + i]), static_cast<float>(1 + b % 16)) << "sequence " << b;
        }
      }
    }
  }
}

TEST(DecodeLimits, MoreThanAMillionKeys) {
  constexpr int kLength = (1 << 20) + 1;
  const Case host({.query_lens = {1},
                   .kv_lens = {kLength},
                   .num_q_heads = 1,
                   .kv = layout(1, 64, 128),
                   .out_dtype = DType::kF32,
                   .query = [](int, int64_t, int, int) { return 1.0F; },
                   .key = [](int, int64_t, int, int) { return 0.0F; },
                   .value = [](int, int64_t token, int, int d) { return d == token % 64 ? 1.0F : 0.0F; }});
  DeviceCase device(host);
  for (const bool batch_invariant : {false, true}) {
    const Outputs outputs = device.run(decode_plan(device.problem, Precision::kSplit, batch_invariant));
    EXPECT_NEAR(outputs.lse[0], std::log(static_cast<float>(kLength)), 1e-4F);
    for (size_t d = 0; d < 64; ++d) EXPECT_NEAR(outputs.f32[d], 1.0F / 64, 1e-5F) << "column " << d;
  }
}

// The plans of these tests are the policy's.
TEST(DecodeLimits, PlansAreThePolicys) {
  for (const int head_dim : {64, 96, 128, 192, 256, 512}) {
    for (const Precision precision : {Precision::kSplit, Precision::kSingle}) {
      for (const bool flag : {false, true}) {
        AttentionProblem problem;
        problem.arch = 90;
        problem.num_q_heads = 8;
        problem.kv = layout(4, head_dim, 64);
        problem.max_query_len = 3;
        problem.causal = flag;
        problem.batch_invariant = flag;
        problem.precision = precision;
        const auto planned = plan_attention(problem);
        ASSERT_TRUE(std::holds_alternative<AttentionPlan>(planned));
        const auto& policy = std::get<AttentionPlan>(planned);
        const AttentionPlan ours = decode_plan(problem, precision, flag);
        EXPECT_EQ(policy.kernel, ours.kernel);
        EXPECT_EQ(policy.precision, ours.precision);
        EXPECT_EQ(policy.kv_tile, ours.kv_tile);
        EXPECT_EQ(policy.split_tokens, ours.split_tokens);
        EXPECT_EQ(policy.promote_qk, ours.promote_qk);
      }
    }
  }
}

TEST(DecodeLimits, WhatTheKernelCannotTakeIsRefused) {
  const DeviceInfo device = query_device(0);
  AttentionProblem problem;
  problem.arch = 90;
  problem.num_q_heads = 32;
  problem.kv = layout(8, 128, 64);
  const AttentionPlan plan = decode_plan(problem, Precision::kSplit);
  DeviceInfo other = device;
  other.arch = 100;
  EXPECT_THROW(DeviceAttention(problem, plan, other, {.max_sequences = 1}), Error);
  AttentionProblem many_rows = problem;
  many_rows.max_query_len = 9;  // 36 rows
  EXPECT_THROW(DeviceAttention(many_rows, plan, device, {.max_sequences = 1}), Error);
  AttentionPlan wrong_tile = plan;
  wrong_tile.kv_tile = 64;
  EXPECT_THROW(DeviceAttention(problem, wrong_tile, device, {.max_sequences = 1}), Error);
  DeviceAttention one(problem, plan, device, {.max_sequences = 1});
  const DeviceBuffer<int32_t> words(8);
  const Device gpu{.kind = Device::Kind::kCuda, .index = 0};
  AttentionArgs two;
  two.seq_lens = ConstTensorView(words.data(), DType::kI32, {2}, gpu);
  two.query_start = ConstTensorView(words.data(), DType::kI32, {3}, gpu);
  two.block_table = ConstTensorView(words.data(), DType::kI32, {2, 1}, gpu);
  EXPECT_THROW(one.schedule(two, nullptr), Error);
}

// B20: what a kernel would read or write misaligned, or with a stride it does not know, is an error before any launch.
TEST(DecodeLimits, MisalignedTensorsAreRefused) {
  const Case host({.query_lens = {1}, .kv_lens = {70}, .num_q_heads = 2, .kv = layout(1, 128, 64), .sinks = true});
  DeviceCase device(host);
  DeviceAttention attention(device.problem, decode_plan(device.problem, Precision::kSplit), query_device(0),
                            device.limits());
  attention.schedule(device.args, nullptr);
  const auto refused = [&](auto change) {
    AttentionArgs args = device.args;
    change(args);
    EXPECT_THROW(attention.run(args, nullptr), Error);
  };
  const auto moved = [](auto* data, int64_t bytes) { return static_cast<std::byte*>(const_cast<void*>(data)) + bytes; };
  refused([&](AttentionArgs& args) { args.q.data = moved(args.q.data, 2); });
  refused([&](AttentionArgs& args) { args.q.data = moved(args.q.data, 4); });
  refused([&](AttentionArgs& args) { args.q.strides[1] = 130; });
  refused([&](AttentionArgs& args) { args.out.data = moved(args.out.data, 2); });
  refused([&](AttentionArgs& args) { args.out.strides[0] = 257; });
  refused([&](AttentionArgs& args) { args.pages.data = moved(args.pages.data, 8); });
  refused([&](AttentionArgs& args) { args.sinks.strides[0] = 2; });
  refused([&](AttentionArgs& args) { args.q.strides[2] = 2; });
  attention.run(device.args, nullptr);
  check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

}  // namespace
}  // namespace quaver::testing
