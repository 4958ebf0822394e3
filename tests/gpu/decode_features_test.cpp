// Faults that others met (known-faults.md) as probes with exact answers, on the GPU.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "device_case.h"
#include "kv_cache/page_format.h"
#include "testing/metric.h"

namespace quaver::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

KvLayout layout(int kv_heads, int head_dim, int page_size = 64) {
  return {.num_kv_heads = kv_heads, .head_dim_k = head_dim, .head_dim_v = head_dim, .page_size = page_size};
}

Element constant(float value) {
  return [value](int, int64_t, int, int) { return value; };
}

Outputs run_split(DeviceCase& device, bool batch_invariant = false) {
  return device.run(decode_plan(device.problem, Precision::kSplit, batch_invariant));
}

// B02: diffuse attention keeps its mass although every weight is small beside the largest.
TEST(DecodeProbes, SmallWeightsKeepTheirMass) {
  for (const Precision precision : {Precision::kSplit, Precision::kSingle}) {
    const Case host({.query_lens = {1},
                     .kv_lens = {4097},
                     .kv = layout(1, 64),
                     .softmax_scale = 1.0F,
                     .out_dtype = DType::kF32,
                     .query = [](int, int64_t, int, int d) { return d == 0 ? 1.0F : 0.0F; },
                     .key = [](int, int64_t token, int, int d) { return token == 0 && d == 0 ? 7.0F : 0.0F; },
                     .value = constant(1.0F)});
    DeviceCase device(host);
    const Outputs outputs = device.run(decode_plan(device.problem, precision));
    for (const float x : outputs.f32) EXPECT_NEAR(x, 1.0F, precision == Precision::kSplit ? 1e-3F : 0.06F);
    EXPECT_NEAR(outputs.lse[0], 8.554996F, 1e-3F);
  }
}

// B04: descales are per (sequence, kv head), whatever their strides; the softcap sees the descaled logit (B23).
TEST(DecodeProbes, DescalesOfAnyStride) {
  const Case host({.query_lens = {1, 1},
                   .kv_lens = {100, 100},
                   .num_q_heads = 12,
                   .kv = layout(2, 64),
                   .softmax_scale = 0.125F,
                   .out_dtype = DType::kF32,
                   .query = constant(1.0F),
                   .key = constant(0.5F),
                   .value = constant(1.0F)});
  DeviceCase device(host);
  const std::vector<float> by_sequence{1.0F, 0.5F};
  const std::vector<float> by_head{1.0F, 0.5F};
  const std::vector<float> transposed{1.0F, 3.0F, 2.0F, 4.0F};  // v_descale[b, h] = 1 + 2b + h at [h, b]
  const auto q = to_device(by_sequence);
  const auto k = to_device(by_head);
  const auto v = to_device(transposed);
  const Device gpu = device.args.q.device;
  device.args.q_descale = ConstTensorView(q.data(), DType::kF32, {2, 2}, gpu);
  device.args.q_descale.strides = {1, 0};
  device.args.k_descale = ConstTensorView(k.data(), DType::kF32, {2, 2}, gpu);
  device.args.k_descale.strides = {0, 1};
  device.args.v_descale = ConstTensorView(v.data(), DType::kF32, {2, 2}, gpu);
  device.args.v_descale.strides = {1, 2};
  const Outputs outputs = run_split(device);
  const float lse[4] = {8.605170F, 6.605170F, 6.605170F, 5.605170F};
  for (size_t b = 0; b < 2; ++b) {
    for (size_t head = 0; head < 12; ++head) {
      const size_t h = head / 6;
      EXPECT_NEAR(outputs.lse[b * 12 + head], lse[2 * b + h], 1e-4F);
      for (size_t d = 0; d < 64; ++d) {
        EXPECT_NEAR(outputs.f32[(b * 12 + head) * 64 + d], static_cast<float>(1 + 2 * b + h), 1e-3F);
      }
    }
  }
}

// B05: no scale and a scale of 1.0 are the same bits.
TEST(DecodeProbes, NoScaleIsScaleOne) {
  const Case host({.query_lens = {1, 2}, .kv_lens = {300, 45}, .num_q_heads = 4, .kv = layout(2, 128)});
  DeviceCase device(host);
  const Outputs none = run_split(device);
  const auto ones = to_device(std::vector<float>(4, 1.0F));
  const Device gpu = device.args.q.device;
  device.args.k_scale = device.args.v_scale = ConstTensorView(ones.data(), DType::kF32, {2}, gpu);
  for (ConstTensorView* view : {&device.args.q_descale, &device.args.k_descale, &device.args.v_descale}) {
    *view = ConstTensorView(ones.data(), DType::kF32, {2, 2}, gpu);
  }
  EXPECT_TRUE(none == run_split(device));
}

// B12: block table entries beyond the length are never followed.
TEST(DecodeProbes, UnusedTableEntriesAreNotRead) {
  Case host({.query_lens = {1, 1, 1}, .kv_lens = {130, 1, 64}, .num_q_heads = 2, .kv = layout(1, 128)});
  DeviceCase minus_one(host);
  const Outputs expected = run_split(minus_one);
  for (int32_t& entry : host.block_table) {
    if (entry < 0) entry = std::numeric_limits<int32_t>::max();
  }
  DeviceCase huge(host);
  EXPECT_TRUE(expected == run_split(huge));
}

// B16: with several query rows every row has its own window edge; the key just outside weighs nothing.
TEST(DecodeProbes, WindowEdgeOfEveryRow) {
  constexpr int kWindow = 1024;
  for (const int length : {1016, 1023, 1024, 1025, 1031, 1032, 1033, 1063, 1064, 1065, 1088, 1100, 2040, 2048, 2055}) {
    for (const int inside : {0, 1}) {
      SCOPED_TRACE(concat("length ", length, inside != 0 ? ", inside" : ", outside"));
      // Column i of V is one at the key just outside (just inside) the window of query row i.
      const Case host({.query_lens = {8},
                       .kv_lens = {length},
                       .num_q_heads = 4,
                       .kv = layout(2, 256, 16),
                       .window = kWindow,
                       .softmax_scale = 1.0F,
                       .out_dtype = DType::kF32,
                       .query = constant(0.25F),
                       .key = constant(0.0F),
                       .value = [&](int, int64_t token, int, int d) {
                         return d < 8 && token == length - 8 + d - kWindow + inside ? 1.0F : 0.0F;
                       }});
      DeviceCase device(host);
      const Outputs outputs = run_split(device);
      for (int row = 0; row < 8; ++row) {
        const int key = length - 8 + row - kWindow + inside;
        const float expected = inside != 0 && key >= 0 ? 1.0F / kWindow : 0.0F;
        for (int head = 0; head < 4; ++head) {
          EXPECT_EQ(outputs.f32[static_cast<size_t>((row * 4 + head) * 256 + row)], expected) << "row " << row;
        }
      }
    }
  }
}

// B19: natural logarithm, [tokens, heads], any strides.
TEST(DecodeProbes, LseIsNaturalAndStrided) {
  for (const bool batch_invariant : {false, true}) {
    const Case host({.query_lens = {3, 1, 3},
                     .kv_lens = {10, 100, 5000},
                     .num_q_heads = 8,
                     .kv = layout(2, 128),
                     .query = constant(1.0F),
                     .key = constant(0.0F)});
    DeviceCase device(host);
    constexpr int64_t kTokenStride = 11;
    const DeviceBuffer<float> lse(7 * kTokenStride);
    check_cuda(cudaMemset(lse.data(), 0xFF, lse.bytes()), "cudaMemset");
    device.args.lse.data = lse.data();
    device.args.lse.strides = {kTokenStride, 1};
    static_cast<void>(run_split(device, batch_invariant));
    const std::vector<float> got = to_host(lse);
    const int keys[7] = {8, 9, 10, 100, 4998, 4999, 5000};
    for (size_t token = 0; token < 7; ++token) {
      for (size_t head = 0; head < 8; ++head) {
        EXPECT_NEAR(got[token * kTokenStride + head], std::log(static_cast<float>(keys[token])), 2e-5F);
      }
      for (size_t pad = 8; pad < kTokenStride; ++pad) EXPECT_TRUE(std::isnan(got[token * kTokenStride + pad]));
    }
  }
}

// B20: q and out as slices of larger tensors give the same bits, and nothing else is written.
TEST(DecodeProbes, StridedQueryAndOutput) {
  const Case host({.query_lens = {2, 1}, .kv_lens = {200, 33}, .num_q_heads = 4, .kv = layout(2, 128)});
  DeviceCase device(host);
  const Outputs dense = run_split(device);
  constexpr int64_t kToken = 4 * 128 + 2 * 2 * 128;  // q, k, v of a fused projection
  std::vector<Bf16> fused(3 * kToken, to_bf16(kInfinity));
  for (size_t token = 0; token < 3; ++token) {
    std::copy_n(host.q_bf16.begin() + token * 512, 512, fused.begin() + token * kToken);
  }
  const auto q = to_device(fused);
  const auto out = to_device(fused);
  device.args.q.data = q.data();
  device.args.q.strides = {kToken, 128, 1};
  device.args.out.data = out.data();
  device.args.out.strides = {kToken, 128, 1};
  static_cast<void>(run_split(device));
  const std::vector<Bf16> got = to_host(out);
  for (size_t token = 0; token < 3; ++token) {
    for (size_t i = 0; i < kToken; ++i) {
      const Bf16 expected = i < 512 ? dense.bf16[token * 512 + i] : to_bf16(kInfinity);
      ASSERT_EQ(got[token * kToken + i], expected) << "token " << token << ", element " << i;
    }
  }
}

// B21: every query head reads its own kv head, for ratios that are no powers of two; B22: every column of V arrives.
TEST(DecodeProbes, RoutingAndColumns) {
  const std::pair<int, int> heads[] = {{12, 2}, {28, 4}, {24, 2}, {40, 8}, {16, 1}, {9, 3}, {5, 5}};
  for (const int head_dim : {64, 96, 128, 192, 256, 512}) {
    for (const auto& [q_heads, kv_heads] : heads) {
      SCOPED_TRACE(concat("d ", head_dim, ", heads ", q_heads, " / ", kv_heads));
      const Case host({.query_lens = {1, 1},
                       .kv_lens = {70, 3},
                       .num_q_heads = q_heads,
                       .kv = layout(kv_heads, head_dim, 16),
                       .out_dtype = DType::kF32,
                       .value = [](int b, int64_t, int head, int d) {
                         return static_cast<float>((1 + 2 * b + head) * (d % 8 + 1));
                       }});
      DeviceCase device(host);
      const Outputs outputs = run_split(device);
      const int ratio = q_heads / kv_heads;
      for (int row = 0; row < 2 * q_heads; ++row) {
        const int b = row / q_heads;
        const int head = row % q_heads / ratio;
        for (int d = 0; d < head_dim; ++d) {
          const auto expected = static_cast<float>((1 + 2 * b + head) * (d % 8 + 1));
          // Large products are no E4M3 values; compare with what the cache holds.
          const float stored = host.v[static_cast<size_t>(b)][static_cast<size_t>(head * head_dim + d)];
          ASSERT_NEAR(stored, expected, 0.07F * expected);
          ASSERT_NEAR(outputs.f32[static_cast<size_t>(row * head_dim + d)], stored, 2e-3F * stored) << "column " << d;
        }
      }
    }
  }
}

// B23: softcap by hand.
TEST(DecodeProbes, Softcap) {
  const Case host({.query_lens = {1},
                   .kv_lens = {2},
                   .kv = layout(1, 64),
                   .softcap = 4.0F,
                   .softmax_scale = 1.0F,
                   .out_dtype = DType::kF32,
                   .query = [](int, int64_t, int, int d) { return d == 0 ? 1.0F : 0.0F; },
                   .key = [](int, int64_t token, int, int d) { return d > 0 ? 0.0F : (token == 0 ? 8.0F : 4.0F); },
                   .value = [](int, int64_t token, int, int d) { return d == token ? 1.0F : 0.0F; }});
  DeviceCase device(host);
  const Outputs outputs = run_split(device);
  EXPECT_NEAR(outputs.f32[0], 0.692053F, 1e-3F);  // hi + lo/16 keeps about 9 bits of P; uncapped is 0.982
  EXPECT_NEAR(outputs.f32[1], 1.0F - 0.692053F, 1e-3F);
  EXPECT_NEAR(outputs.lse[0], 4.224203F, 1e-4F);
}

// A row with only a sink: O = 0, LSE = the sink's logit; a far larger sink takes all the mass without overflow.
TEST(DecodeProbes, SinksAloneAndHuge) {
  Case host({.query_lens = {1, 1},
             .kv_lens = {0, 300},
             .num_q_heads = 2,
             .kv = layout(1, 128),
             .sinks = true,
             .out_dtype = DType::kF32});
  host.sinks = {1.5F, 300.0F};
  DeviceCase device(host);
  const Outputs outputs = run_split(device);
  for (size_t i = 0; i < 2 * 128; ++i) EXPECT_EQ(outputs.f32[i], 0.0F);
  EXPECT_NEAR(outputs.lse[0], 1.5F, 1e-5F);
  EXPECT_NEAR(outputs.lse[1], 300.0F, 1e-4F);
  for (size_t i = 3 * 128; i < 4 * 128; ++i) EXPECT_NEAR(outputs.f32[i], 0.0F, 1e-30F);
  EXPECT_NEAR(outputs.lse[3], 300.0F, 1e-4F);
}

// A NaN key makes the rows that see it NaN, LSE too; other sequences and kv heads stay as they were.
TEST(DecodeProbes, NanStaysInItsSequenceAndHead) {
  Case host({.query_lens = {1, 1, 1},
             .kv_lens = {100, 700, 90},
             .num_q_heads = 4,
             .kv = layout(2, 128),
             .out_dtype = DType::kF32});
  DeviceCase clean(host);
  const Outputs before = run_split(clean);
  const int64_t width = static_cast<int64_t>(host.block_table.size()) / 3;
  const int64_t page = host.block_table[static_cast<size_t>(width + 450 / 64)];
  const int64_t offset =
      page * page_format::page_bytes(host.problem.kv) + page_format::k_offset(host.problem.kv, 1, 450 % 64, 5);
  host.pages[static_cast<size_t>(offset)] = 0x7F;
  DeviceCase poisoned(host);
  for (const bool batch_invariant : {false, true}) {
    const Outputs after = run_split(poisoned, batch_invariant);
    for (size_t row = 0; row < 12; ++row) {
      const bool hit = row / 4 == 1 && row % 4 >= 2;
      EXPECT_EQ(std::isnan(after.lse[row]), hit) << "row " << row;
      for (size_t d = 0; d < 128; ++d) {
        EXPECT_EQ(std::isnan(after.f32[row * 128 + d]), hit);
        if (!hit && !batch_invariant) {
          EXPECT_EQ(after.f32[row * 128 + d], before.f32[row * 128 + d]);
        }
      }
    }
  }
}

// The row scale of Q: zeros and denormal rows are no division by zero, large rows do not overflow.
TEST(DecodeProbes, ExtremeQueries) {
  const float scales[] = {0.0F, 1e-38F, 1e-30F, 1.0F, 3e4F};
  for (const float scale : scales) {
    const Case host({.query_lens = {1},
                     .kv_lens = {200},
                     .num_q_heads = 2,
                     .kv = layout(1, 128),
                     .softmax_scale = scale > 1.0F ? 1e-5F : 0.0F,
                     .out_dtype = DType::kF32,
                     .query = [scale](int, int64_t, int head, int d) {
                       return scale * (static_cast<float>((d * 7 + head) % 13) - 6.0F);
                     }});
    DeviceCase device(host);
    const Outputs outputs = run_split(device);
    const OracleOutput expected = host.expected();
    EXPECT_TRUE(close_to<float>(outputs.f32, expected.out, 128, tolerance(Precision::kSplit, DType::kF32)));
  }
}

}  // namespace
}  // namespace quaver::testing
