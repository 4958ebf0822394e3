// The kernel and its CPU emulation do the same arithmetic: before output rounding they agree far closer than either
// agrees with float64. Also: what the kernel's own arithmetic loses on peaked data.
#include <gtest/gtest.h>

#include <cmath>

#include "attention/cpu/emulated.h"
#include "device_case.h"
#include "testing/metric.h"
#include "testing/random.h"

namespace quaver::testing {
namespace {

class DecodeEmulation : public ::testing::TestWithParam<std::tuple<int, Precision>> {};

TEST_P(DecodeEmulation, AgreesBeforeRounding) {
  const auto [head_dim, precision] = GetParam();
  struct Rows {
    std::vector<int32_t> query_lens, kv_lens;
    int group = 1;
  };
  const Rows shapes[] = {
      {{1, 3, 2, 1}, {700, 129, 4500, 64}, 2}, {{1, 1, 1}, {700, 129, 1100}, 4}, {{1, 1, 1}, {700, 129, 1100}, 2}};
  for (const Rows& rows : shapes) {
    for (const bool batch_invariant : {false, true}) {
      SCOPED_TRACE(concat(rows.query_lens.size(), " sequences, group ", rows.group,
                          batch_invariant ? ", fixed splits" : ", even cut"));
      Case host({.query_lens = rows.query_lens,
                 .kv_lens = rows.kv_lens,
                 .num_q_heads = 2 * rows.group,
                 .kv = {.num_kv_heads = 2, .head_dim_k = head_dim, .head_dim_v = head_dim, .page_size = 32},
                 .window = batch_invariant ? 0 : 600,
                 .softcap = batch_invariant ? 0.0F : 40.0F,
                 .sinks = !batch_invariant,
                 .scales = true,
                 .descales = true,
                 .out_dtype = DType::kF32,
                 .seed = 3});
      DeviceCase device(host);
      const AttentionPlan plan = decode_plan(device.problem, precision, batch_invariant);
      attention_emulated(host.problem, plan, host.args);
      const Outputs outputs = device.run(plan);
      const double limit = precision == Precision::kSplit ? 5e-4 : 1e-2;
      const double difference = relative_l2(outputs.values(), host.out_values());
      std::printf("d%d %s, %d rows: %.2e\n", head_dim, std::string(precision_name(precision)).c_str(),
                  rows.group * device.problem.max_query_len, difference);
      EXPECT_LE(difference, limit);
      for (size_t i = 0; i < host.lse.size(); ++i) EXPECT_NEAR(outputs.lse[i], host.lse[i], 2e-3) << "row " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(HeadDims, DecodeEmulation,
                         ::testing::Combine(::testing::Values(64, 96, 128, 192, 256, 512),
                                            ::testing::Values(Precision::kSplit, Precision::kSingle)),
                         [](const auto& test) {
                           return concat("d", std::get<0>(test.param), "_", precision_name(std::get<1>(test.param)));
                         });

// A key whose logit stands 10 above the rest: the 13-bit accumulator of QK shows (2.3e-3 to 5.9e-3 at d >= 256 unless
// it is promoted every K = 128).
class DecodePeaked : public ::testing::TestWithParam<int> {};

TEST_P(DecodePeaked, SplitKeepsBf16Accuracy) {
  const int head_dim = GetParam();
  constexpr int kLength = 2048;
  constexpr int kPlanted = 1234;
  const float root = std::sqrt(static_cast<float>(head_dim));
  const auto noise = [](int64_t token, int head, int dim, uint64_t seed) {
    Random random(seed + static_cast<uint64_t>((token * 64 + head) * 1024 + dim) * 0x9E3779B97F4A7C15U);
    return random.normal();
  };
  const auto query = [&](int64_t token, int head, int dim) { return noise(token, head, dim, 11); };
  Case host({.query_lens = {1},
             .kv_lens = {kLength},
             .num_q_heads = 4,
             .kv = {.num_kv_heads = 4, .head_dim_k = head_dim, .head_dim_v = head_dim, .page_size = 64},
             .out_dtype = DType::kF32,
             .query = [&](int, int64_t token, int head, int dim) { return query(token, head, dim); },
             .key =
                 [&](int, int64_t token, int head, int dim) {
                   // q . q / sqrt(d) = sqrt(d): 10 / sqrt(d) of q gives a logit near 10.
                   return token == kPlanted ? query(0, head, dim) * (10.0F + 3.0F) / root : noise(token, head, dim, 23);
                 }});
  DeviceCase device(host);
  const Outputs outputs = device.run(decode_plan(device.problem, Precision::kSplit));
  const Deviation d = deviation<float>(outputs.values(), host.expected().out, head_dim);
  RecordProperty("relative_l2", std::to_string(d.relative_l2));
  std::printf("peaked d%d: relative L2 %.2e before output rounding\n", head_dim, d.relative_l2);
  EXPECT_LE(d.relative_l2, 1.5e-3);
}

INSTANTIATE_TEST_SUITE_P(HeadDims, DecodePeaked, ::testing::Values(64, 128, 256, 512));

}  // namespace
}  // namespace quaver::testing
