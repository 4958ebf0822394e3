// Decode behind append with InFront::kNewKeys: older keys are loaded before the append has ended, new ones never.
#include <gtest/gtest.h>

#include "device_case.h"
#include "kv_cache/device_cache.h"
#include "testing/random.h"

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

/// K and V of a step's query tokens, and their slots.
class NewKeys {
 public:
  NewKeys(const Case& host, const DeviceCase& device, uint64_t seed) {
    const KvLayout& layout = host.problem.kv;
    std::vector<int64_t> slots;
    const int64_t width = host.args.block_table.dim(1);
    for (size_t b = 0; b < host.seq_lens.size(); ++b) {
      const int32_t tokens = host.query_start[b + 1] - host.query_start[b];
      for (int32_t i = 0; i < tokens; ++i) {
        const int64_t position = host.seq_lens[b] - tokens + i;
        const bool exists = position >= 0 && host.seq_lens[b] > 0;
        const int64_t page =
            exists ? host.block_table[b * static_cast<size_t>(width) + static_cast<size_t>(position / layout.page_size)]
                   : 0;
        slots.push_back(exists ? page * layout.page_size + position % layout.page_size : -1);
      }
    }
    Random random(seed);
    std::vector<Bf16> rows(slots.size() * static_cast<size_t>(layout.num_kv_heads * layout.head_dim_k));
    const auto fill = [&] {
      for (Bf16& x : rows) x = to_bf16(random.normal());
      return to_device(rows);
    };
    k_ = fill();
    v_ = fill();
    slots_ = to_device(slots);
    const int64_t tokens = std::ssize(slots);
    args_.layout = layout;
    args_.k = {k_.data(), DType::kBF16, {tokens, layout.num_kv_heads, layout.head_dim_k}, device.args.pages.device};
    args_.v = {v_.data(), DType::kBF16, {tokens, layout.num_kv_heads, layout.head_dim_v}, device.args.pages.device};
    args_.slots = {slots_.data(), DType::kI64, {tokens}, device.args.pages.device};
    args_.pages = {const_cast<void*>(device.args.pages.data),
                   DType::kU8,
                   {device.args.pages.dim(0), device.args.pages.dim(1)},
                   device.args.pages.device};
  }

  void append(cudaStream_t stream) const { append_kv(args_, stream); }

 private:
  DeviceBuffer<Bf16> k_, v_;
  DeviceBuffer<int64_t> slots_;
  AppendArgs args_;
};

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
