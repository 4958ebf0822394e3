// Decode behind append with InFront::kNewKeys: older keys are loaded before the append has ended, new ones never.
#include <gtest/gtest.h>

#include "new_keys.h"

namespace quaver::testing {
namespace {

/// Ragged decode rows, some of several tokens: sequences that are all new, end inside a tile, or fill whole ones.
Case ragged_case(int head_dim, int group) {
  return Case({.query_lens = {1, 3, 1, 2, 1, 1, 3, 1, 2, 1, 1, 0, 1},
               .kv_lens = {1, 3, 64, 65, 128, 129, 700, 2048, 4099, 63, 0, 5, 10000},
               .num_q_heads = 2 * group,
               .kv = {.num_kv_heads = 2, .head_dim_k = head_dim, .head_dim_v = head_dim, .page_size = 64},
               .seed = 7});
}

class DecodeEarly : public ::testing::TestWithParam<int> {};

// Two sets of keys take turns in the same slots: a load that did not wait would see those of the other set.
TEST_P(DecodeEarly, SeesTheKeysAppendedInFront) {
  for (const int group : {1, 2, 10}) {  // up to 4, 8 and 32 rows
    const Case host = ragged_case(GetParam(), group);
    DeviceCase device(host);
    device.problem.max_query_len = 3;
    const AttentionPlan plan = decode_plan(device.problem, Precision::kSplit);
    DeviceAttention attention(device.problem, plan, query_device(0), device.limits());
    const NewKeys sets[] = {NewKeys(host, device, 1), NewKeys(host, device, 2)};
    const CudaStream stream = make_stream();
    Outputs expected[2];
    for (size_t i = 0; i < 2; ++i) {
      sets[i].append(stream.get());
      expected[i] = device.run(attention, stream.get());
    }
    ASSERT_FALSE(expected[0] == expected[1]);
    for (size_t last = 0; last < 2; ++last) {
      SCOPED_TRACE(concat("group ", group, ", last set ", last));
      const CudaGraphExec graph = capture_graph(stream.get(), [&](cudaStream_t s) {
        for (size_t step = 0; step < 7; ++step) {
          sets[(step + last) % 2].append(s);
          attention.run(device.args, s, InFront::kNewKeys);
        }
      });
      for (int repeat = 0; repeat < 10; ++repeat) {
        EXPECT_TRUE(device.replay(graph, stream.get()) == expected[last]);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(HeadDims, DecodeEarly, ::testing::Values(64, 96, 128, 192, 256, 512));

}  // namespace
}  // namespace quaver::testing
