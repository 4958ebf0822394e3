#include "engine/pool_size.h"

#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "model/cpu_model.h"
#include "testing/expect_error.h"
#include "testing/gemma_31b.h"

namespace quaver {
namespace {

// Two full layers and four sliding ones (window 100): groups of 2 layers, pages of 16 tokens, 1024 bytes a page.
CachePlan small_plan() {
  const LayerCacheSpec full{.layout = {.num_kv_heads = 1, .head_dim_k = 32, .head_dim_v = 32}, .window = 0};
  LayerCacheSpec sliding = full;
  sliding.window = 100;
  return plan_cache(std::vector<LayerCacheSpec>{sliding, full, sliding, sliding, full, sliding}, 16);
}

TEST(PoolSize, BytesBuyWholeBlocks) {
  const CachePlan plan = small_plan();
  ASSERT_EQ(plan.groups.size(), 3U);
  ASSERT_EQ(plan.block_bytes(), 2048);
  PoolLimits limits{.cache_bytes = 3 * 2048, .max_num_seqs = 100, .max_model_len = 512};
  EXPECT_EQ(pool_pages(plan, limits), 3);
  limits.cache_bytes = 11 * 2048 - 1;
  EXPECT_EQ(pool_pages(plan, limits), 10);
  limits = {.memory_utilization = 0.5, .available_bytes = 40 * 2048, .max_num_seqs = 100, .max_model_len = 512};
  EXPECT_EQ(pool_pages(plan, limits), 20);
}

TEST(PoolSize, NoMoreThanAllSequencesCanHold) {
  const CachePlan plan = small_plan();
  PoolLimits limits{.cache_bytes = int64_t{1} << 40, .max_num_seqs = 3, .max_model_len = 512, .step_tokens = 10};
  // 32 pages of the full group; 109 visible keys on at most 8 pages in each of two sliding groups.
  EXPECT_EQ(pool_pages(plan, limits), 3 * (32 + 2 * 8));
  limits.cache_bytes = std::numeric_limits<int64_t>::max();
  limits.max_num_seqs = int64_t{1} << 40;
  EXPECT_EQ(pool_pages(plan, limits), std::numeric_limits<int32_t>::max());
}

TEST(PoolSize, TooLittleIsAnErrorWithNumbers) {
  const CachePlan plan = small_plan();
  const auto refused = [&](const PoolLimits& limits, std::initializer_list<std::string_view> parts) {
    testing::expect_error([&] { (void)pool_pages(plan, limits); }, ErrorKind::kInvalidArgument, parts);
  };
  refused({.cache_bytes = 6143}, {"kv_cache_memory_bytes 6143", "at least 6144", "2048 bytes", "3 cache groups"});
  refused({.cache_bytes = -1}, {"kv_cache_memory_bytes -1"});
  refused({.memory_utilization = 0.5, .available_bytes = 8000},
          {"gpu_memory_utilization 0.5 of 8000 available bytes", "at least 6144"});
  refused({.available_bytes = -5}, {"of -5 available bytes"});
  refused({.memory_utilization = 0.0, .available_bytes = 1 << 30}, {"gpu_memory_utilization 0: expected in (0, 1]"});
  refused({.memory_utilization = 1.5, .available_bytes = 1 << 30}, {"gpu_memory_utilization 1.5"});
}

// Row S6: 128 sequences of 8,192 + 1,024 tokens of Gemma 4 31B on one H200, prompts in one chunk. Weights 29.9, cache
// 98.1 and a chunk's sliding pages 3.1 GiB of 139: with gpu_memory_utilization 0.97 of what the weights and 2 GiB of
// workspace leave, the pool has room for all of it.
TEST(PoolSize, Gemma31BOnOneH200) {
  constexpr double kGiB = 1 << 30;
  const CachePlan plan = plan_cache(cache_specs(testing::gemma_31b(), KvDtype::kE4M3), 64);
  ASSERT_EQ(plan.groups.size(), 6U);
  ASSERT_EQ(plan.block_bytes(), 10 * 524288);
  const int64_t stored = 8192 + 1024 - 1;
  const int64_t decoding = plan.blocks_for(stored, 1);
  EXPECT_EQ(decoding, 72 + 5 * 17);  // pages of 128 tokens; 1,024 keys on 64-token pages, worst alignment
  const int64_t of_chunk = plan.blocks_for(stored, 8192) - decoding;
  EXPECT_EQ(of_chunk, 5 * (144 - 17));
  const auto gibibytes = [&](int64_t blocks) { return static_cast<double>(blocks * plan.block_bytes()) / kGiB; };
  EXPECT_NEAR(gibibytes(128 * decoding), 98.1, 0.1);
  EXPECT_NEAR(gibibytes(of_chunk), 3.1, 0.1);
  const PoolLimits limits{.memory_utilization = 0.97,
                          .available_bytes = static_cast<int64_t>((139 - 29.9 - 2) * kGiB),
                          .max_num_seqs = 128,
                          .max_model_len = 8192 + 1024,
                          .step_tokens = 8192};
  const int64_t pages = pool_pages(plan, limits);
  EXPECT_GE(pages, 128 * decoding + of_chunk);
  PoolLimits default_share = limits;
  default_share.memory_utilization = 0.9;
  EXPECT_LT(pool_pages(plan, default_share), 128 * decoding);
}

TEST(PoolSize, ThisMachineHasMemory) {
  const int64_t bytes = available_host_bytes();
  EXPECT_GT(bytes, int64_t{1} << 20);
  EXPECT_LT(bytes, int64_t{1} << 50);
}

}  // namespace
}  // namespace quaver
