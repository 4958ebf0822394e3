// Image spans in the prefill kernel: which keys every row sees, where spans end, steps with and without them, and
// single tokens beside them, which stay the decode kernel's.
#include <gtest/gtest.h>

#include "attention/policy.h"
#include "attention/schedule/span_ends.h"
#include "prefill_shape.h"
#include "testing/expect_error.h"

namespace quaver::testing {
namespace {

KvLayout layout(int kv_heads, int head_dim, int page_size = 64) {
  return {.num_kv_heads = kv_heads, .head_dim_k = head_dim, .head_dim_v = head_dim, .page_size = page_size};
}

// One past the last token of each token's span, by its definition: sequence by sequence, token by token.
std::vector<int32_t> ends_of(const std::vector<int32_t>& ids, const std::vector<int32_t>& query_start) {
  std::vector<int32_t> ends(ids.size(), -7);
  for (size_t b = 0; b + 1 < query_start.size(); ++b) {
    for (int32_t t = query_start[b]; t < query_start[b + 1]; ++t) {
      int32_t end = t + 1;
      while (ids[static_cast<size_t>(t)] >= 0 && end < query_start[b + 1] &&
             ids[static_cast<size_t>(end)] == ids[static_cast<size_t>(t)]) {
        ++end;
      }
      ends[static_cast<size_t>(t)] = end - query_start[b];
    }
  }
  return ends;
}

// Spans of any length, at any place of a warp, that end with their sequence although the next one goes on with the same
// id; sequences without tokens; rows that are nobody's.
TEST(SpanEnds, AreThoseOfTheDefinition) {
  Random random(3);
  for (const int64_t tokens : {1, 31, 32, 33, 127, 128, 129, 1000}) {
    for (const int longest : {1, 3, 40, 700}) {
      SCOPED_TRACE(concat(tokens, " tokens, spans to ", longest));
      std::vector<int32_t> ids;
      while (std::ssize(ids) < tokens) {
        const auto id = static_cast<int32_t>(random.below(4)) - 1;  // neighbours with one id are one span
        ids.insert(ids.end(), static_cast<size_t>(1 + random.below(longest)), id);
      }
      ids.resize(static_cast<size_t>(tokens));
      std::vector<int32_t> starts{0};
      while (starts.back() < tokens && starts.size() < 40) {
        const int64_t step = random.below(tokens / 3 + 2);  // 0 too
        starts.push_back(static_cast<int32_t>(std::min(tokens, starts.back() + step)));
      }
      const auto device_ids = to_device(ids);
      const auto device_starts = to_device(starts);
      const auto ends = to_device(std::vector<int32_t>(ids.size(), -7));
      schedule::find_span_ends(
          {.span_ids = device_ids.data(),
           .num_tokens = static_cast<int>(tokens),
           .lengths = {.query_start = device_starts.data(), .num_sequences = static_cast<int>(starts.size()) - 1},
           .ends = ends.data()},
          nullptr);
      check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
      EXPECT_EQ(to_host(ends), ends_of(ids, starts));
    }
  }
}

class PrefillSpans : public ::testing::TestWithParam<PrefillMode> {};

// Every row counts exactly the keys that it sees: its past, as far as the window goes, and its span to the end.
TEST_P(PrefillSpans, EveryEdgeOfEveryRow) {
  const auto [head_dim, precision] = GetParam();
  struct Edges {
    int query_len, kv_len, window, group, page_size, span_len;
  };
  const Edges all[] = {{300, 300, 0, 1, 64, 90},   {130, 700, 0, 2, 16, 40},    {257, 641, 128, 1, 32, 200},
                       {257, 640, 60, 3, 128, 90}, {200, 511, 257, 1, 16, 300}, {200, 70, 0, 2, 64, 50}};
  uint64_t seed = 20;
  for (const Edges& e : all) {
    SCOPED_TRACE(concat("q ", e.query_len, " kv ", e.kv_len, " window ", e.window, " spans ", e.span_len));
    const Case host({.query_lens = {e.query_len},
                     .kv_lens = {e.kv_len},
                     .num_q_heads = e.group,
                     .kv = layout(1, head_dim, e.page_size),
                     .window = e.window,
                     .span_len = e.span_len,
                     .out_dtype = DType::kF32,
                     .seed = ++seed,
                     .query = [](int, int64_t, int, int) { return 0.25F; },
                     .key = [](int, int64_t, int, int) { return 0.0F; },
                     .value = one_hot_values(head_dim)});
    DeviceCase device(host);
    const Outputs outputs = device.run(prefill_plan(device.problem, precision));
    const std::vector<int32_t> ends = ends_of(host.span_ids, host.query_start);
    for (int token = 0; token < e.query_len; ++token) {
      const int64_t position = e.kv_len - e.query_len + token;
      const int64_t first = e.window > 0 ? std::max<int64_t>(0, position - e.window + 1) : 0;
      const int64_t last = std::min<int64_t>(e.kv_len, position - token + ends[static_cast<size_t>(token)]);
      ASSERT_NO_FATAL_FAILURE(expect_mean_of(outputs, token, e.group, head_dim, {first, last}));
    }
  }
}

TEST_P(PrefillSpans, MatchFloat64AndRepeatBitwise) {
  const PrefillMode mode = GetParam();
  const Shape all[] = {{.name = "ragged",
                        .query_lens = {60, 1, 0, 33, 5},
                        .kv_lens = {90, 300, 20, 33, 2},
                        .kv_heads = 2,
                        .group = 3,
                        .page_size = 16,
                        .scales = true,
                        .span_len = 20},
                       {.name = "window",
                        .query_lens = {160, 8},
                        .kv_lens = {200, 100},
                        .group = 2,
                        .window = 100,
                        .softcap = 30.0F,
                        .sinks = true,
                        .descales = true,
                        .span_len = 130},
                       {.name = "one_span", .query_lens = {140}, .kv_lens = {300}, .page_size = 128, .span_len = 4000},
                       {.name = "cut", .query_lens = {20}, .kv_lens = {1500}, .group = 2, .span_len = 15},
                       {.name = "bf16_out",
                        .query_lens = {70, 40},
                        .kv_lens = {129, 40},
                        .group = 4,
                        .page_size = 32,
                        .out = DType::kBF16,
                        .span_len = 30}};
  uint64_t seed = 40;
  for (const Shape& shape : all) {
    SCOPED_TRACE(shape.name);
    const Case host = prefill_case(shape, mode, ++seed);
    DeviceCase device(host);
    DeviceAttention attention(device.problem, prefill_plan(device.problem, mode.precision), query_device(0),
                              device.limits());
    const Tolerance limit = prefill_limit(mode.precision, shape.out);
    const Outputs first = device.run(attention);
    const OracleOutput expected = host.expected();
    EXPECT_TRUE(close_to<float>(first.values(), expected.out, mode.head_dim, limit));
    EXPECT_TRUE(lse_close_to<float>(first.lse, expected.lse, limit));
    EXPECT_TRUE(first == device.run(attention)) << "second run differs";
  }
}

// A problem that may have spans, in a step that has none: the bits of a problem that never has.
TEST_P(PrefillSpans, StepsOfTextAreAsWithoutSpans) {
  const auto [head_dim, precision] = GetParam();
  const Case host({.query_lens = {70, 3}, .kv_lens = {200, 90}, .num_q_heads = 4, .kv = layout(2, head_dim)});
  DeviceCase device(host);
  const Outputs expected = device.run(prefill_plan(device.problem, precision));
  device.problem.bidirectional_spans = true;
  EXPECT_TRUE(expected == device.run(prefill_plan(device.problem, precision)));
  const auto text = to_device(std::vector<int32_t>(73, -1));
  device.args.span_ids = {text.data(), DType::kI32, {73}, device.args.q.device};
  EXPECT_TRUE(expected == device.run(prefill_plan(device.problem, precision)));
}

INSTANTIATE_TEST_SUITE_P(Modes, PrefillSpans,
                         ::testing::Values(PrefillMode{64, Precision::kSingle}, PrefillMode{64, Precision::kSplit},
                                           PrefillMode{256, Precision::kSingle}, PrefillMode{256, Precision::kSplit},
                                           PrefillMode{512, Precision::kSingle}, PrefillMode{512, Precision::kSplit}));

// A mixed step as the engine has them. Single tokens are the decode kernel's, to the bit; a few tokens are so only in
// steps without spans.
TEST(MixedSpans, SingleTokensStayWithTheDecodeKernel) {
  for (const int window : {0, 100}) {
    SCOPED_TRACE(window);
    const Case host({.query_lens = {1, 150, 4, 1, 9},
                     .kv_lens = {300, 200, 129, 700, 9},
                     .num_q_heads = 4,
                     .kv = layout(2, 256),
                     .window = window,
                     .sinks = true,
                     .span_len = 25,
                     .seed = 6});
    DeviceCase device(host);
    const AttentionPlan plan = plan_or_throw(device.problem);
    ASSERT_EQ(plan.kernel, AttentionKernel::kPrefillFp8);
    DeviceAttention attention(device.problem, plan, query_device(0), device.limits());
    const Outputs mixed = device.run(attention);
    const OracleOutput expected = host.expected();
    Tolerance limit = tolerance(Precision::kSingle, DType::kBF16);
    limit.worst_row = 2 * limit.worst_row;  // of 9 keys
    EXPECT_TRUE(close_to<float>(mixed.values(), expected.out, 256, limit));
    const auto rows = [](const Outputs& outputs, int first, int count) {
      const size_t row = 4 * 256;
      return std::vector<Bf16>(outputs.bf16.begin() + static_cast<int64_t>(first * row),
                               outputs.bf16.begin() + static_cast<int64_t>((first + count) * row));
    };
    const Outputs all_prefill = device.run(prefill_plan(device.problem, plan.precision));
    EXPECT_EQ(rows(mixed, 1, 154), rows(all_prefill, 1, 154));
    EXPECT_EQ(rows(mixed, 156, 9), rows(all_prefill, 156, 9));
    device.problem.kernel.reset();
    device.problem.bidirectional_spans = false;
    device.args.span_ids = {};
    DeviceAttention without(device.problem, plan, query_device(0), device.limits());
    const Outputs text = device.run(without);
    for (const int single : {0, 155}) EXPECT_EQ(rows(mixed, single, 1), rows(text, single, 1));
    EXPECT_NE(rows(mixed, 151, 4), rows(text, 151, 4)) << "expected the decode kernel for 4 tokens of text";
  }
}

// One kernel object, steps with spans and without, and a graph that is replayed with other spans.
TEST(MixedSpans, GraphReplaysOtherSpans) {
  const Case host(
      {.query_lens = {100, 1, 40}, .kv_lens = {300, 50, 40}, .num_q_heads = 4, .kv = layout(2, 64), .span_len = 30});
  DeviceCase device(host);
  const AttentionPlan plan = plan_or_throw(device.problem);
  DeviceAttention attention(device.problem, plan, query_device(0), device.limits());
  const CudaStream stream = make_stream();
  const CudaGraphExec graph = device.capture(attention, stream.get(), 2);
  std::vector<int32_t> ids(141, -1);
  for (int32_t i = 0; i < 4; ++i) {
    SCOPED_TRACE(i);
    overwrite(device.args.span_ids, ids);
    EXPECT_TRUE(device.replay(graph, stream.get()) == device.run(plan));
    for (size_t t = 0; t < ids.size(); ++t) ids[t] = static_cast<int32_t>(t) / (7 + 20 * i) % 3 - 1;
  }
  const ConstTensorView spans = device.args.span_ids;
  const Outputs with = device.run(attention);
  device.args.span_ids = {};
  const Outputs text = device.run(attention);
  EXPECT_FALSE(with == text);
  device.args.span_ids = spans;
  EXPECT_TRUE(with == device.run(attention));
}

TEST(MixedSpans, MoreTokensThanItWasMadeForAreRefused) {
  const Case host({.query_lens = {40}, .kv_lens = {40}, .num_q_heads = 2, .kv = layout(1, 64), .span_len = 10});
  DeviceCase device(host);
  DeviceAttentionLimits limits = device.limits();
  limits.max_tokens = 39;
  DeviceAttention attention(device.problem, plan_or_throw(device.problem), query_device(0), limits);
  expect_error([&] { attention.schedule(device.args, nullptr); }, ErrorKind::kInvalidArgument,
               {"span_ids of 40 tokens: expected at most 39"});
}

}  // namespace
}  // namespace quaver::testing
