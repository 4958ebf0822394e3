// Probes of the prefill kernel with exact answers: mask edges of every row, routing, NaN, strides, graphs; and its
// agreement with the emulation, the decode kernel and the general kernel.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "attention/cpu/emulated.h"
#include "kv_cache/page_format.h"
#include "prefill_shape.h"

namespace quaver::testing {
namespace {

KvLayout layout(int kv_heads, int head_dim, int page_size = 64) {
  return {.num_kv_heads = kv_heads, .head_dim_k = head_dim, .head_dim_v = head_dim, .page_size = page_size};
}

Element constant(float value) {
  return [value](int, int64_t, int, int) { return value; };
}

Outputs run(DeviceCase& device, Precision precision) {
  return device.run(prefill_plan(device.problem, precision));
}

Outputs run_single(DeviceCase& device) {
  return run(device, Precision::kSingle);
}

// B16: every row counts exactly the keys that it sees, whatever tile, page and block edges they lie at.
TEST(PrefillProbes, EveryMaskEdgeOfEveryRow) {
  struct Edges {
    int query_len, kv_len, window, group, page_size;
    bool causal;
  };
  const Edges all[] = {{300, 300, 0, 1, 64, true},    {130, 700, 0, 2, 16, true},   {257, 641, 128, 1, 32, true},
                       {257, 640, 129, 3, 128, true}, {129, 400, 127, 2, 64, true}, {200, 511, 257, 1, 16, true},
                       {100, 383, 0, 2, 64, false},   {150, 300, 60, 1, 64, false}, {200, 70, 0, 2, 64, true}};
  for (const auto& [head_dim, precision] : prefill_modes()) {
    for (const Edges& e : all) {
      SCOPED_TRACE(concat("d ", head_dim, " ", precision_name(precision), " q ", e.query_len, " kv ", e.kv_len,
                          " window ", e.window));
      const Case host({.query_lens = {e.query_len},
                       .kv_lens = {e.kv_len},
                       .num_q_heads = e.group,
                       .kv = layout(1, head_dim, e.page_size),
                       .causal = e.causal,
                       .window = e.window,
                       .out_dtype = DType::kF32,
                       .query = constant(0.25F),
                       .key = constant(0.0F),
                       .value = one_hot_values(head_dim)});
      DeviceCase device(host);
      const Outputs outputs = run(device, precision);
      for (int token = 0; token < e.query_len; ++token) {
        const tiles::KeyRange keys =
            tiles::visible_keys({.causal = e.causal, .window = e.window}, e.kv_len, e.query_len, token);
        ASSERT_NO_FATAL_FAILURE(expect_mean_of(outputs, token, e.group, head_dim, keys));
      }
    }
  }
}

// B21, B22: every query head reads its own kv head, every column of V arrives.
TEST(PrefillProbes, RoutingAndColumns) {
  const std::pair<int, int> heads[] = {{12, 2}, {28, 4}, {16, 1}, {9, 3}, {5, 5}};
  for (const auto& [head_dim, precision] : prefill_modes()) {
    for (const auto& [q_heads, kv_heads] : heads) {
      SCOPED_TRACE(concat("d ", head_dim, " ", precision_name(precision), ", heads ", q_heads, " / ", kv_heads));
      const Case host({.query_lens = {40, 3},
                       .kv_lens = {70, 3},
                       .num_q_heads = q_heads,
                       .kv = layout(kv_heads, head_dim, 16),
                       .out_dtype = DType::kF32,
                       .key = constant(0.0F),
                       .value = [](int b, int64_t, int head, int d) {
                         return static_cast<float>((1 + 2 * b + head) * (d % 8 + 1));
                       }});
      DeviceCase device(host);
      const Outputs outputs = run(device, precision);
      const int ratio = q_heads / kv_heads;
      for (int row = 0; row < 43 * q_heads; ++row) {
        const size_t b = row / q_heads < 40 ? 0 : 1;
        const int head = row % q_heads / ratio;
        for (int d = 0; d < head_dim; ++d) {
          const float stored = host.v[b][static_cast<size_t>(head * head_dim + d)];
          ASSERT_NEAR(outputs.f32[static_cast<size_t>(row * head_dim + d)], stored, 1e-3F * stored) << "column " << d;
        }
      }
    }
  }
}

// B12: block table entries beyond the length, and those left of every window, are never followed.
TEST(PrefillProbes, UnusedTableEntriesAreNotRead) {
  Case host(
      {.query_lens = {60, 1, 64}, .kv_lens = {500, 1, 64}, .num_q_heads = 2, .kv = layout(1, 128, 16), .window = 100});
  DeviceCase before(host);
  const Outputs expected = run_single(before);
  for (int32_t& entry : host.block_table) {
    if (entry < 0) entry = std::numeric_limits<int32_t>::max();
  }
  const int oldest = 500 - 60 - 100 + 1;
  for (int page = 0; page < oldest / 16; ++page) host.block_table[static_cast<size_t>(page)] = -1;
  DeviceCase after(host);
  EXPECT_TRUE(expected == run_single(after));
}

// A NaN key makes the rows that see it NaN, LSE too; other sequences and kv heads stay as they were.
TEST(PrefillProbes, NanStaysInItsSequenceAndHead) {
  Case host({.query_lens = {100, 200, 90},
             .kv_lens = {100, 700, 90},
             .num_q_heads = 4,
             .kv = layout(2, 128),
             .out_dtype = DType::kF32});
  DeviceCase clean(host);
  const Outputs before = run_single(clean);
  const int64_t width = static_cast<int64_t>(host.block_table.size()) / 3;
  const int64_t page = host.block_table[static_cast<size_t>(width + 600 / 64)];
  host.pages[static_cast<size_t>(page * page_format::page_bytes(host.problem.kv) +
                                 page_format::k_offset(host.problem.kv, 1, 600 % 64, 5))] = 0x7F;
  DeviceCase poisoned(host);
  const Outputs after = run_single(poisoned);
  for (size_t row = 0; row < after.lse.size(); ++row) {
    const size_t token = row / 4;
    const bool hit = token >= 100 && token < 300 && row % 4 >= 2 && token - 100 + 500 >= 600;
    ASSERT_EQ(std::isnan(after.lse[row]), hit) << "row " << row;
    for (size_t d = 0; d < 128; d += 7) {
      ASSERT_EQ(std::isnan(after.f32[row * 128 + d]), hit) << "row " << row;
      if (!hit) {
        ASSERT_EQ(after.f32[row * 128 + d], before.f32[row * 128 + d]);
      }
    }
  }
}

// B05: no scale and a scale of 1.0 are the same bits; a scale of any sign and zero gives what the definition says.
TEST(PrefillProbes, Scales) {
  const Case host({.query_lens = {50, 2}, .kv_lens = {300, 45}, .num_q_heads = 4, .kv = layout(2, 128)});
  DeviceCase device(host);
  const Outputs none = run_single(device);
  const auto ones = to_device(std::vector<float>(4, 1.0F));
  const Device gpu = device.args.q.device;
  device.args.k_scale = device.args.v_scale = ConstTensorView(ones.data(), DType::kF32, {2}, gpu);
  for (ConstTensorView* view : {&device.args.q_descale, &device.args.k_descale, &device.args.v_descale}) {
    *view = ConstTensorView(ones.data(), DType::kF32, {2, 2}, gpu);
  }
  EXPECT_TRUE(none == run_single(device));
  for (const float sign : {-1.0F, 0.0F}) {
    Case other({.query_lens = {50, 2}, .kv_lens = {300, 45}, .num_q_heads = 4, .kv = layout(2, 128)});
    other.args.softmax_scale *= sign;
    DeviceCase device_other(other);
    Tolerance limit = tolerance(Precision::kSingle, DType::kBF16);
    limit.gain = limit.relative_l2;
    const OracleOutput expected = other.expected();
    const Outputs outputs = run_single(device_other);
    EXPECT_TRUE(close_to<float>(outputs.values(), expected.out, 128, limit));
    EXPECT_TRUE(lse_close_to<float>(outputs.lse, expected.lse, limit));
  }
}

// B20: q, out and LSE as slices of larger tensors give the same bits, and nothing else is written.
TEST(PrefillProbes, StridedTensors) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const Case host({.query_lens = {70, 1}, .kv_lens = {200, 33}, .num_q_heads = 4, .kv = layout(2, 128)});
  DeviceCase device(host);
  const Outputs dense = run_single(device);
  constexpr size_t kTokens = 71;
  constexpr size_t kToken = 4 * 128 + 2 * 2 * 128;  // q, k, v of a fused projection
  std::vector<Bf16> fused(kTokens * kToken, to_bf16(kInfinity));
  for (size_t token = 0; token < kTokens; ++token) {
    std::copy_n(host.q_bf16.begin() + static_cast<int64_t>(token * 512), 512,
                fused.begin() + static_cast<int64_t>(token * kToken));
  }
  const auto q = to_device(fused);
  const auto out = to_device(fused);
  const auto lse = to_device(std::vector<float>(kTokens * 7, kInfinity));
  device.args.q.data = q.data();
  device.args.out.data = out.data();
  device.args.q.strides = device.args.out.strides = {kToken, 128, 1};
  device.args.lse.data = lse.data();
  device.args.lse.strides = {7, 1};
  static_cast<void>(run_single(device));
  const std::vector<Bf16> got = to_host(out);
  const std::vector<float> got_lse = to_host(lse);
  for (size_t token = 0; token < kTokens; ++token) {
    for (size_t i = 0; i < kToken; ++i) {
      const Bf16 expected = i < 512 ? dense.bf16[token * 512 + i] : to_bf16(kInfinity);
      ASSERT_EQ(got[token * kToken + i], expected) << "token " << token << ", element " << i;
    }
    for (size_t i = 0; i < 7; ++i) {
      ASSERT_EQ(got_lse[token * 7 + i], i < 4 ? dense.lse[token * 4 + i] : kInfinity) << "token " << token;
    }
  }
}

// What the kernel would read or write misaligned is an error before any launch.
TEST(PrefillProbes, MisalignedTensorsAreRefused) {
  const Case host({.query_lens = {40}, .kv_lens = {70}, .num_q_heads = 2, .kv = layout(1, 128)});
  DeviceCase device(host);
  DeviceAttention attention(device.problem, prefill_plan(device.problem, Precision::kSingle), query_device(0),
                            device.limits());
  attention.schedule(device.args, nullptr);
  const auto refused = [&](auto change) {
    AttentionArgs args = device.args;
    change(args);
    EXPECT_THROW(attention.run(args, nullptr), Error);
  };
  const auto moved = [](auto* data, int64_t bytes) { return static_cast<std::byte*>(const_cast<void*>(data)) + bytes; };
  refused([&](AttentionArgs& args) { args.q.data = moved(args.q.data, 8); });
  refused([&](AttentionArgs& args) { args.q.strides[1] = 132; });
  refused([&](AttentionArgs& args) { args.out.data = moved(args.out.data, 8); });
  refused([&](AttentionArgs& args) { args.out.strides[0] = 260; });
  attention.run(device.args, nullptr);
  check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

// B24: captured with one set of lengths, replayed with others.
TEST(PrefillGraph, ReplayWithOtherLengths) {
  const Case host({.query_lens = {300, 40, 70}, .kv_lens = {300, 600, 70}, .num_q_heads = 4, .kv = layout(2, 128)});
  DeviceCase device(host);
  device.problem.max_query_len = 410;
  const AttentionPlan plan = prefill_plan(device.problem, Precision::kSingle);
  DeviceAttention attention(device.problem, plan, query_device(0), device.limits());
  const CudaStream stream = make_stream();
  const CudaGraphExec graph = device.capture(attention, stream.get(), 2);  // two layers with one work list
  const std::vector<std::vector<int32_t>> starts{{0, 300, 340, 410}, {0, 1, 101, 410}, {0, 0, 410, 410}, {0, 3, 3, 3}};
  const std::vector<std::vector<int32_t>> lengths{{300, 600, 70}, {20, 600, 0}, {5, 590, 70}, {300, 17, 1}};
  for (size_t i = 0; i < starts.size(); ++i) {
    SCOPED_TRACE(i);
    overwrite(device.args.query_start, starts[i]);
    overwrite(device.args.seq_lens, lengths[i]);
    const Outputs replayed = device.replay(graph, stream.get());
    EXPECT_TRUE(replayed == device.run(plan));
  }
}

// The kernel and its emulation do the same arithmetic: before output rounding they agree far closer than either agrees
// with float64.
class PrefillEmulation : public ::testing::TestWithParam<PrefillMode> {};

TEST_P(PrefillEmulation, AgreesBeforeRounding) {
  const auto [head_dim, precision] = GetParam();
  for (const bool all_features : {false, true}) {
    Case host({.query_lens = {60, 5, 40},
               .kv_lens = {330, 129, 40},
               .num_q_heads = 4,
               .kv = layout(2, head_dim, 32),
               .window = all_features ? 150 : 0,
               .softcap = all_features ? 40.0F : 0.0F,
               .sinks = all_features,
               .scales = true,
               .descales = true,
               .out_dtype = DType::kF32,
               .seed = 3});
    DeviceCase device(host);
    const AttentionPlan plan = prefill_plan(device.problem, precision);
    attention_emulated(host.problem, plan, host.args);
    const Outputs outputs = device.run(plan);
    const double difference = relative_l2(outputs.values(), host.out_values());
    std::printf("emulation, d%d %s: %.1e\n", head_dim, precision_name(precision).data(), difference);
    EXPECT_LE(difference, precision == Precision::kSplit ? 5e-4 : 1e-2);
    for (size_t i = 0; i < host.lse.size(); ++i) EXPECT_NEAR(outputs.lse[i], host.lse[i], 2e-3) << "row " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, PrefillEmulation, ::testing::ValuesIn(prefill_modes()));

// B26: prefill and decode of the same rows in the same mode. With equal tiles and promotion (all but 192 and 256) they
// differ by at most one BF16 step in 99.9 % of the outputs. At 192 and 256 the decode kernel has tiles of 64: other
// truncations in the tensor core show in outputs near zero. At 256 `single` is also promoted in decode only, which
// moves a P across a rounding edge of E4M3 now and then. docs/numerics.md has what the emulation says of each.
class PrefillAndDecode : public ::testing::TestWithParam<PrefillMode> {};

TEST_P(PrefillAndDecode, Agree) {
  const auto [head_dim, precision] = GetParam();
  for (const int window : {0, 300}) {
    const Case host({.query_lens = std::vector<int32_t>(6, 8),
                     .kv_lens = {1000, 77, 8, 3000, 129, 500},
                     .num_q_heads = 16,
                     .kv = layout(4, head_dim),
                     .window = window});
    DeviceCase device(host);
    const AttentionPlan prefill_kernel = prefill_plan(device.problem, precision);
    const AttentionPlan decode_kernel = decode_plan(device.problem, precision);
    const Outputs prefill = device.run(prefill_kernel);
    const Outputs decode = device.run(decode_kernel);
    const double far = beyond_one_step(prefill.bf16, decode.bf16);
    const double difference = relative_l2(prefill.values(), decode.values());
    std::printf("prefill and decode, d%d %s window %d: %.3f %% beyond one step, relative L2 %.1e\n", head_dim,
                precision_name(precision).data(), window, 100 * far, difference);
    if (prefill_kernel.promote_qk != decode_kernel.promote_qk) {
      EXPECT_LE(far, 0.12);
      EXPECT_LE(difference, 1e-2);
    } else {
      EXPECT_LE(far, prefill_kernel.kv_tile == decode_kernel.kv_tile ? 1e-3 : 1e-2);
      EXPECT_LE(difference, 2e-3);
    }
    for (size_t i = 0; i < prefill.lse.size(); ++i) EXPECT_NEAR(prefill.lse[i], decode.lse[i], 1e-3F);
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, PrefillAndDecode, ::testing::ValuesIn(prefill_modes()));

// Prompts that fill the grid many times, against the general kernel's FP32 on the same cache.
class PrefillLarge : public ::testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(PrefillLarge, MatchesTheGeneralKernel) {
  const auto [head_dim, window] = GetParam();
  Random random(9);
  const Case host({.query_lens = {2048, 700, 1, 1500},
                   .kv_lens = {2048, 5000, 3000, 1500},
                   .num_q_heads = 8,
                   .kv = layout(head_dim == 128 ? 2 : 4, head_dim),
                   .window = window,
                   .query = [&](int, int64_t, int, int) { return e4m3_decode(e4m3_quantize(random.normal(), 1.0F)); }});
  DeviceCase device(host);
  const Outputs outputs = run_single(device);
  const Outputs reference =
      device.run({.kernel = AttentionKernel::kGeneral, .precision = Precision::kFull, .reason = {}});
  const std::vector<float> expected = reference.values();
  const double difference = relative_l2(outputs.values(), expected);
  std::printf("large, d%d window %d: %.2e\n", head_dim, window, difference);
  EXPECT_LE(difference, 2.8e-2);
  for (size_t i = 0; i < outputs.lse.size(); ++i) ASSERT_NEAR(outputs.lse[i], reference.lse[i], 5e-3F) << "row " << i;
}

INSTANTIATE_TEST_SUITE_P(Shapes, PrefillLarge,
                         ::testing::Combine(::testing::Values(64, 128, 256, 512), ::testing::Values(0, 1024)));

}  // namespace
}  // namespace quaver::testing
