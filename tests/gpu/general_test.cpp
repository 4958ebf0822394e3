// The general kernel against float64 on the same stored data: both caches, any head dims, rows, masks and features;
// unused page bytes are NaN codes, outputs are poisoned, every run is repeated and must give the same bits.
#include <gtest/gtest.h>

#include <cmath>

#include "attention/policy.h"
#include "device_case.h"
#include "kv_cache/page_format.h"
#include "shape.h"
#include "testing/metric.h"

namespace quaver::testing {
namespace {

AttentionPlan general_plan(AttentionProblem problem) {
  problem.kernel = AttentionKernel::kGeneral;
  return plan_or_throw(problem);
}

Element constant(float value) {
  return [value](int, int64_t, int, int) { return value; };
}

std::vector<Shape> shapes() {
  return {
      {.name = "one_token", .query_lens = {1}, .kv_lens = {1}, .kv_heads = 2, .group = 2},
      {.name = "ragged",
       .query_lens = std::vector<int32_t>(16, 1),
       .kv_lens = ragged_lengths(),
       .kv_heads = 2,
       .group = 3,
       .page_size = 16,
       .scales = true},
      {.name = "bf16_out",
       .query_lens = {1, 2, 1},
       .kv_lens = {400, 129, 0},
       .kv_heads = 2,
       .group = 4,
       .page_size = 32,
       .scales = true,
       .out = DType::kBF16},
      {.name = "prompt_and_decode",  // more rows than the decode kernel takes
       .query_lens = {70, 1, 0, 40},
       .kv_lens = {70, 300, 20, 129},
       .kv_heads = 1,
       .group = 2,
       .descales = true},
      {.name = "more_queries_than_keys",  // B14
       .query_lens = {5, 130, 3},
       .kv_lens = {2, 1, 0},
       .page_size = 128},
      {.name = "window",
       .query_lens = {20, 1, 9},
       .kv_lens = {260, 333, 9},
       .group = 7,
       .page_size = 32,
       .window = 100,
       .softcap = 30.0F,
       .sinks = true},
      {.name = "window1", .query_lens = {1, 2, 3}, .kv_lens = {5, 260, 64}, .group = 2, .page_size = 16, .window = 1},
      {.name = "not_causal",
       .query_lens = {40, 3, 1},
       .kv_lens = {100, 70, 2},
       .kv_heads = 2,
       .group = 2,
       .causal = false},
      {.name = "not_causal_window",
       .query_lens = {40, 3, 1},
       .kv_lens = {200, 70, 2},
       .page_size = 16,
       .window = 40,
       .descales = true,
       .causal = false},
      {.name = "spans", .query_lens = {60, 33}, .kv_lens = {90, 33}, .kv_heads = 2, .group = 2, .span_len = 9},
      {.name = "spans_window",
       .query_lens = {60, 33, 8},
       .kv_lens = {90, 33, 3},
       .group = 2,
       .page_size = 16,
       .window = 12,
       .sinks = true,
       .span_len = 20},
      {.name = "everything",
       .query_lens = {7, 0, 11},
       .kv_lens = {700, 5, 555},
       .kv_heads = 2,
       .group = 5,
       .page_size = 128,
       .window = 300,
       .softcap = 20.0F,
       .sinks = true,
       .scales = true,
       .descales = true},
  };
}

struct Dims {
  KvDtype dtype;
  int k;
  int v;
};

class GeneralShapes : public ::testing::TestWithParam<Dims> {};

TEST_P(GeneralShapes, MatchFloat64AndRepeatBitwise) {
  const Dims dims = GetParam();
  uint64_t seed = 70;
  for (const Shape& shape : shapes()) {
    SCOPED_TRACE(shape.name);
    const Case host(spec_of(shape, {.dtype = dims.dtype, .head_dim_k = dims.k, .head_dim_v = dims.v}, ++seed));
    DeviceCase device(host);
    DeviceAttention attention(device.problem, general_plan(device.problem), query_device(0), device.limits());
    const OracleOutput expected = host.expected();
    const Outputs first = device.run(attention);
    const Tolerance limit = tolerance(Precision::kFull, shape.out);
    EXPECT_TRUE(close_to<float>(first.values(), expected.out, dims.v, limit));
    EXPECT_TRUE(lse_close_to<float>(first.lse, expected.lse, limit));
    EXPECT_TRUE(first == device.run(attention)) << "second run differs";
  }
}

// B22: any head dim, K and V apart.
INSTANTIATE_TEST_SUITE_P(
    HeadDims, GeneralShapes,
    ::testing::Values(Dims{KvDtype::kE4M3, 16, 16}, Dims{KvDtype::kE4M3, 64, 64}, Dims{KvDtype::kE4M3, 80, 80},
                      Dims{KvDtype::kE4M3, 192, 128}, Dims{KvDtype::kE4M3, 64, 512}, Dims{KvDtype::kE4M3, 256, 256},
                      Dims{KvDtype::kBF16, 1, 3}, Dims{KvDtype::kBF16, 40, 40}, Dims{KvDtype::kBF16, 100, 72},
                      Dims{KvDtype::kBF16, 128, 128}, Dims{KvDtype::kBF16, 256, 128}, Dims{KvDtype::kBF16, 512, 512}),
    [](const auto& test) { return concat(kv_dtype_name(test.param.dtype), "_k", test.param.k, "_v", test.param.v); });

// The policy sends a BF16 cache, odd head dims and many rows here, without being asked.
TEST(GeneralProbes, PolicyChoosesIt) {
  const Case host({.query_lens = {9, 1},
                   .kv_lens = {20, 33},
                   .num_q_heads = 4,
                   .kv = {.dtype = KvDtype::kBF16, .num_kv_heads = 2, .head_dim_k = 64, .head_dim_v = 64}});
  DeviceCase device(host);
  const auto decision = plan_attention(device.problem);
  ASSERT_TRUE(std::holds_alternative<AttentionPlan>(decision));
  EXPECT_EQ(std::get<AttentionPlan>(decision).kernel, AttentionKernel::kGeneral);
  const Outputs outputs = device.run(std::get<AttentionPlan>(decision));
  EXPECT_TRUE(close_to<float>(outputs.values(), host.expected().out, 64, tolerance(Precision::kFull, DType::kBF16)));
}

// B05, B23: a scale of 1.0 is no scale, and softcap by hand.
TEST(GeneralProbes, NoScaleIsScaleOne) {
  const Case host({.query_lens = {1, 2},
                   .kv_lens = {300, 45},
                   .num_q_heads = 4,
                   .kv = {.num_kv_heads = 2, .head_dim_k = 80, .head_dim_v = 80}});
  DeviceCase device(host);
  const AttentionPlan plan = general_plan(device.problem);
  const Outputs none = device.run(plan);
  const auto ones = to_device(std::vector<float>(4, 1.0F));
  const Device gpu = device.args.q.device;
  device.args.k_scale = device.args.v_scale = ConstTensorView(ones.data(), DType::kF32, {2}, gpu);
  for (ConstTensorView* view : {&device.args.q_descale, &device.args.k_descale, &device.args.v_descale}) {
    *view = ConstTensorView(ones.data(), DType::kF32, {2, 2}, gpu);
  }
  EXPECT_TRUE(none == device.run(plan));
}

TEST(GeneralProbes, Softcap) {
  const Case host({.query_lens = {1},
                   .kv_lens = {2},
                   .kv = {.dtype = KvDtype::kBF16, .head_dim_k = 5, .head_dim_v = 2},
                   .softcap = 4.0F,
                   .softmax_scale = 1.0F,
                   .out_dtype = DType::kF32,
                   .query = [](int, int64_t, int, int d) { return d == 0 ? 1.0F : 0.0F; },
                   .key = [](int, int64_t token, int, int d) { return d > 0 ? 0.0F : (token == 0 ? 8.0F : 4.0F); },
                   .value = [](int, int64_t token, int, int d) { return d == token ? 1.0F : 0.0F; }});
  DeviceCase device(host);
  const Outputs outputs = device.run(general_plan(device.problem));
  EXPECT_NEAR(outputs.f32[0], 0.692053F, 1e-6F);
  EXPECT_NEAR(outputs.lse[0], 4.224203F, 1e-6F);
}

// A row with only a sink: O = 0, LSE = the sink's logit.
TEST(GeneralProbes, SinkAlone) {
  Case host({.query_lens = {1, 1},
             .kv_lens = {0, 300},
             .num_q_heads = 2,
             .kv = {.head_dim_k = 48, .head_dim_v = 48},
             .sinks = true,
             .out_dtype = DType::kF32});
  host.sinks = {1.5F, 300.0F};
  DeviceCase device(host);
  const Outputs outputs = device.run(general_plan(device.problem));
  for (size_t i = 0; i < size_t{2} * 48; ++i) EXPECT_EQ(outputs.f32[i], 0.0F);
  EXPECT_NEAR(outputs.lse[0], 1.5F, 1e-6F);
  EXPECT_NEAR(outputs.lse[1], 300.0F, 1e-4F);
  for (size_t i = size_t{3} * 48; i < size_t{4} * 48; ++i) EXPECT_NEAR(outputs.f32[i], 0.0F, 1e-30F);
}

// B12: block table entries beyond the length, and left of the window, are never followed.
TEST(GeneralProbes, UnusedTableEntriesAreNotRead) {
  Case host({.query_lens = {2, 1, 1},
             .kv_lens = {130, 1, 64},
             .num_q_heads = 2,
             .kv = {.head_dim_k = 112, .head_dim_v = 112, .page_size = 16},
             .window = 20});
  DeviceCase minus_one(host);
  const AttentionPlan plan = general_plan(minus_one.problem);
  const Outputs expected = minus_one.run(plan);
  for (int32_t& entry : host.block_table) {
    if (entry < 0) entry = std::numeric_limits<int32_t>::max();
  }
  for (size_t page = 0; page < (130 - 2 - 20 + 1) / 16; ++page) host.block_table[page] = -1;
  DeviceCase huge(host);
  EXPECT_TRUE(expected == huge.run(plan));
}

// B25: a row's bits do not depend on the batch it is in.
TEST(GeneralProbes, AloneAsInABatch) {
  const Case host({.query_lens = {3, 1, 5},
                   .kv_lens = {700, 90, 300},
                   .num_q_heads = 4,
                   .kv = {.num_kv_heads = 2, .head_dim_k = 80, .head_dim_v = 80}});
  DeviceCase device(host);
  const AttentionPlan plan = general_plan(device.problem);
  const Outputs all = device.run(plan);
  const AttentionArgs args = device.args;
  const int64_t width = args.block_table.dim(1);
  for (int64_t b = 0; b < 3; ++b) {
    const auto from = [&](const ConstTensorView& view, int64_t index, int64_t count) {
      ConstTensorView part = view;
      part.data = static_cast<const int32_t*>(view.data) + index;
      part.shape[0] = count;
      return part;
    };
    device.args = args;
    device.args.seq_lens = from(args.seq_lens, b, 1);
    device.args.query_start = from(args.query_start, b, 2);
    device.args.block_table = from(args.block_table, b * width, 1);
    const Outputs one = device.run(plan);
    for (int32_t token = 0; token < host.query_start.back(); ++token) {
      const bool own =
          token >= host.query_start[static_cast<size_t>(b)] && token < host.query_start[static_cast<size_t>(b) + 1];
      for (size_t i = static_cast<size_t>(token) * 320; i < (static_cast<size_t>(token) + 1) * 320; ++i) {
        // Rows of no sequence are left alone: still poison.
        ASSERT_EQ(one.bf16[i].bits, own ? all.bf16[i].bits : 0xFFFF) << "token " << token;
      }
    }
  }
}

// A NaN key makes the rows that see it NaN, LSE too; other rows, sequences and kv heads stay as they were.
TEST(GeneralProbes, NanStaysWhereItIsSeen) {
  Case host({.query_lens = {3, 1},
             .kv_lens = {100, 90},
             .num_q_heads = 4,
             .kv = {.num_kv_heads = 2, .head_dim_k = 32, .head_dim_v = 32},
             .out_dtype = DType::kF32});
  DeviceCase clean(host);
  const AttentionPlan plan = general_plan(clean.problem);
  const Outputs before = clean.run(plan);
  const int64_t page = host.block_table[98 / 64];  // key 98 of sequence 0: rows 1 and 2 see it
  host.pages[static_cast<size_t>(page * page_format::page_bytes(host.problem.kv) +
                                 page_format::k_offset(host.problem.kv, 1, 98 % 64, 5))] = 0x7F;
  DeviceCase poisoned(host);
  const Outputs after = poisoned.run(plan);
  for (size_t row = 0; row < 16; ++row) {
    const bool hit = row / 4 >= 1 && row / 4 <= 2 && row % 4 >= 2;
    EXPECT_EQ(std::isnan(after.lse[row]), hit) << "row " << row;
    for (size_t d = 0; d < 32; ++d) {
      EXPECT_EQ(std::isnan(after.f32[row * 32 + d]), hit);
      if (!hit) {
        EXPECT_EQ(after.f32[row * 32 + d], before.f32[row * 32 + d]);
      }
    }
  }
}

// B11: offsets beyond 2^31 and 2^32 bytes.
TEST(GeneralLimits, PoolsBeyond32BitOffsets) {
  const Case host({.query_lens = {1},
                   .kv_lens = {190},
                   .num_q_heads = 16,
                   .kv = {.num_kv_heads = 16, .head_dim_k = 256, .head_dim_v = 256, .page_size = 64}});
  DeviceCase device(host);
  const AttentionPlan plan = general_plan(device.problem);
  const Outputs expected = device.run(plan);
  constexpr int64_t kPages = 8300;
  const int64_t page_bytes = page_format::page_bytes(host.problem.kv);
  const DeviceBuffer<uint8_t> pool(kPages * page_bytes);
  std::vector<int32_t> table = host.block_table;
  const int32_t placed[] = {4096, 8192, 8299};
  for (size_t i = 0; i < 3; ++i) {
    check_cuda(cudaMemcpy(pool.data() + placed[i] * page_bytes, host.pages.data() + table[i] * page_bytes,
                          static_cast<size_t>(page_bytes), cudaMemcpyHostToDevice),
               "cudaMemcpy");
    table[i] = placed[i];
  }
  const auto device_table = to_device(table);
  device.args.block_table.data = device_table.data();
  device.args.pages = ConstTensorView(pool.data(), DType::kU8, {kPages, page_bytes}, device.args.q.device);
  EXPECT_TRUE(expected == device.run(plan));
}

// More sequences than a grid's y or z has, and more rows than CTAs.
TEST(GeneralLimits, BatchesBeyond65535) {
  constexpr size_t kBatch = 70000;
  const Case host({.query_lens = std::vector<int32_t>(kBatch, 1),
                   .kv_lens = std::vector<int32_t>(kBatch, 1),
                   .num_q_heads = 16,
                   .kv = {.head_dim_k = 16, .head_dim_v = 16, .page_size = 16},
                   .query = constant(1.0F),
                   .key = constant(0.5F),
                   .value = [](int b, int64_t, int, int) { return static_cast<float>(1 + b % 16); }});
  ASSERT_GT(host.num_rows(), int64_t{1} << 20);
  DeviceCase device(host);
  const Outputs outputs = device.run(general_plan(device.problem));
  for (size_t i = 0; i < outputs.bf16.size(); ++i) {
    ASSERT_EQ(to_float(outputs.bf16[i]), static_cast<float>(1 + i / 256 % 16)) << "element " << i;
  }
}

TEST(GeneralLimits, MoreThanAMillionKeys) {
  constexpr int kLength = (1 << 20) + 1;
  const Case host({.query_lens = {1},
                   .kv_lens = {kLength},
                   .kv = {.head_dim_k = 16, .head_dim_v = 32, .page_size = 128},
                   .out_dtype = DType::kF32,
                   .query = constant(1.0F),
                   .key = constant(0.0F),
                   .value = [](int, int64_t token, int, int d) { return d == token % 32 ? 1.0F : 0.0F; }});
  DeviceCase device(host);
  const Outputs outputs = device.run(general_plan(device.problem));
  EXPECT_NEAR(outputs.lse[0], std::log(static_cast<float>(kLength)), 2e-6F);
  for (size_t d = 0; d < 32; ++d) EXPECT_NEAR(outputs.f32[d], 1.0F / 32, 1e-6F) << "column " << d;
}

// Head dims whose accumulators no CTA can hold are refused by name.
TEST(GeneralLimits, HeadDimsBeyondSharedMemory) {
  AttentionProblem problem;
  problem.arch = 90;
  problem.num_q_heads = 1;
  problem.kv = {.head_dim_k = 8192, .head_dim_v = 8192};
  EXPECT_THROW(DeviceAttention(problem, general_plan(problem), query_device(0), {}), Error);
}

}  // namespace
}  // namespace quaver::testing
