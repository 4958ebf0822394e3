// The prefill kernel against float64 on the same quantised data, over head dims, pages, GQA ratios, chunks, windows and
// features; unused page bytes are NaN codes, outputs are poisoned, every run is repeated and must give the same bits.
#include <gtest/gtest.h>

#include "core/e4m3.h"
#include "device_case.h"
#include "testing/metric.h"
#include "testing/random.h"

namespace quaver::testing {
namespace {

struct Shape {
  const char* name;
  std::vector<int32_t> query_lens;
  std::vector<int32_t> kv_lens;
  int kv_heads;
  int group;
  int page_size;
  int window = 0;
  float softcap = 0.0F;
  bool sinks = false;
  bool scales = false;
  bool descales = false;
  bool causal = true;
  DType out = DType::kF32;
};

std::vector<Shape> shapes() {
  return {
      {"one_token", {1}, {1}, 2, 2, 64},
      {"prompt", {300}, {300}, 2, 2, 64, 0, 0.0F, false, true, true},
      {"tile_edges", {127, 128, 129, 63, 64, 65}, {127, 128, 129, 63, 64, 65}, 1, 1, 64},
      {"ragged", ragged_lengths(), ragged_lengths(), 1, 2, 16, 0, 0.0F, true},
      {"chunks", {100, 65, 1, 128}, {777, 300, 129, 640}, 2, 2, 64},
      {"chunk_page16_group7", {50, 3}, {300, 131}, 1, 7, 16, 0, 30.0F, true},
      {"chunk_page32_group3", {90, 17}, {211, 17}, 2, 3, 32, 0, 0.0F, false, true},
      {"chunk_page128_group4", {70, 33}, {500, 128}, 1, 4, 128, 0, 0.0F, false, false, true},
      {"group16", {20}, {150}, 1, 16, 64, 0, 50.0F, true, true, true},
      {"no_rows_and_no_keys", {0, 70, 0, 5}, {40, 70, 0, 0}, 2, 2, 64},
      {"more_queries_than_keys", {5, 30, 130, 200}, {2, 1, 0, 70}, 1, 2, 64},  // B14
      {"many_items", std::vector<int32_t>(70, 3), std::vector<int32_t>(70, 40), 4, 1, 16},
      {"window128", {300, 40}, {300, 700}, 2, 2, 32, 128},
      {"window70_group3", {257}, {640}, 1, 3, 16, 70, 0.0F, true, true},
      {"window1", {130, 2}, {130, 260}, 1, 2, 64, 1},
      {"window1000", {200}, {1400}, 1, 1, 128, 1000, 50.0F},
      {"window_beyond_length", {90}, {90}, 2, 1, 64, 4096},
      {"not_causal", {70, 130}, {500, 70}, 2, 2, 64, 0, 0.0F, false, false, false, false},
      {"not_causal_window", {70, 130}, {500, 130}, 2, 2, 64, 40, 0.0F, false, false, false, false},
      {"bf16_out", {150, 2, 40}, {400, 129, 40}, 2, 4, 64, 0, 0.0F, false, true, false, true, DType::kBF16},
  };
}

Case make_case(const Shape& shape, int head_dim, uint64_t seed) {
  return Case({.query_lens = shape.query_lens,
               .kv_lens = shape.kv_lens,
               .num_q_heads = shape.kv_heads * shape.group,
               .kv = {.num_kv_heads = shape.kv_heads,
                      .head_dim_k = head_dim,
                      .head_dim_v = head_dim,
                      .page_size = shape.page_size},
               .causal = shape.causal,
               .window = shape.window,
               .softcap = shape.softcap,
               .sinks = shape.sinks,
               .scales = shape.scales,
               .descales = shape.descales,
               .out_dtype = shape.out,
               .seed = seed});
}

class PrefillShapes : public ::testing::TestWithParam<int> {};

TEST_P(PrefillShapes, MatchFloat64AndRepeatBitwise) {
  const int head_dim = GetParam();
  uint64_t seed = 7;
  for (const Shape& shape : shapes()) {
    SCOPED_TRACE(shape.name);
    const Case host = make_case(shape, head_dim, ++seed);
    DeviceCase device(host);
    const OracleOutput expected = host.expected();
    DeviceAttention attention(device.problem, prefill_plan(device.problem, Precision::kSingle), query_device(0),
                              device.limits());
    const Outputs first = device.run(attention);
    Tolerance limit = tolerance(Precision::kSingle, shape.out);
    // Rows of one or two keys share one rounding of P, so their errors do not average out in the gain.
    limit.gain = limit.relative_l2;
    EXPECT_TRUE(close_to<float>(first.values(), expected.out, head_dim, limit));
    EXPECT_TRUE(lse_close_to<float>(first.lse, expected.lse, limit));
    EXPECT_TRUE(first == device.run(attention)) << "second run differs";
  }
}

INSTANTIATE_TEST_SUITE_P(HeadDims, PrefillShapes, ::testing::Values(64, 96, 128, 192, 256));

// With a Q that E4M3 holds exactly what remains is the rounding of P: 2.4e-2.
class PrefillExactQuery : public ::testing::TestWithParam<int> {};

TEST_P(PrefillExactQuery, ErrorIsThatOfP) {
  Random random(5);
  const int head_dim = GetParam();
  const Case host({.query_lens = {64, 200},
                   .kv_lens = {2000, 200},
                   .num_q_heads = 4,
                   .kv = {.num_kv_heads = 2, .head_dim_k = head_dim, .head_dim_v = head_dim, .page_size = 64},
                   .query = [&](int, int64_t, int, int) { return e4m3_decode(e4m3_quantize(random.normal(), 1.0F)); }});
  DeviceCase device(host);
  const Outputs outputs = device.run(prefill_plan(device.problem, Precision::kSingle));
  const OracleOutput expected = host.expected();
  const Deviation d = deviation<float>(outputs.values(), expected.out, head_dim);
  std::printf("exact Q, d%d: relative L2 %.2e\n", head_dim, d.relative_l2);
  EXPECT_LE(d.relative_l2, 2.7e-2);
  EXPECT_TRUE(lse_close_to<float>(outputs.lse, expected.lse, {.lse = 2e-3}));
}

INSTANTIATE_TEST_SUITE_P(HeadDims, PrefillExactQuery, ::testing::Values(64, 96, 128, 192, 256));

}  // namespace
}  // namespace quaver::testing
