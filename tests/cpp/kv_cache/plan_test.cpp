// Cache groups and page sizes.
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "kv_cache/page_format.h"
#include "quaver/kv_cache.h"

namespace quaver {
namespace {

LayerCacheSpec layer(int heads, int dim, int window, KvDtype dtype = KvDtype::kE4M3) {
  return {.layout = {.dtype = dtype, .num_kv_heads = heads, .head_dim_k = dim, .head_dim_v = dim}, .window = window};
}

/// Layers in Gemma's pattern: every `period`-th is full.
std::vector<LayerCacheSpec> hybrid(int num_layers, int period, const LayerCacheSpec& sliding,
                                   const LayerCacheSpec& full) {
  std::vector<LayerCacheSpec> layers;
  for (int i = 0; i < num_layers; ++i) layers.push_back((i + 1) % period == 0 ? full : sliding);
  return layers;
}

/// What must hold for every plan.
void expect_consistent(const CachePlan& plan, std::span<const LayerCacheSpec> layers) {
  ASSERT_EQ(plan.places.size(), layers.size());
  std::set<std::pair<int, int>> taken;
  int64_t used = 0;
  int largest = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto [group, slab] = plan.places[i];
    EXPECT_TRUE(taken.emplace(group, slab).second) << "two layers at group " << group << " slab " << slab;
    ASSERT_LT(slab, plan.num_slabs);
    const CacheGroup& g = plan.groups.at(static_cast<size_t>(group));
    EXPECT_EQ(g.layers.at(static_cast<size_t>(slab)), static_cast<int>(i));
    EXPECT_EQ(g.window, layers[i].window);
    KvLayout expected = layers[i].layout;
    expected.page_size = g.layout.page_size;
    EXPECT_EQ(g.layout, expected);
    check_layout(g.layout);
    EXPECT_LE(page_format::page_bytes(g.layout), plan.page_bytes);
    used += page_format::page_bytes(g.layout);
    largest = std::max(largest, g.layout.page_size);
  }
  EXPECT_EQ(plan.wasted_page_bytes, plan.block_bytes() * std::ssize(plan.groups) - used);
  EXPECT_EQ(plan.largest_page_tokens, largest);
}

TEST(CachePlan, Gemma4With31BHasOneFullAndFiveSlidingGroupsOfTen) {
  const auto layers = hybrid(60, 6, layer(16, 256, 1024), layer(4, 512, 0));
  const CachePlan plan = plan_cache(layers, 64);
  expect_consistent(plan, layers);
  EXPECT_EQ(plan.num_slabs, 10);
  EXPECT_EQ(plan.page_bytes, 524288);
  EXPECT_EQ(plan.wasted_page_bytes, 0);
  EXPECT_EQ(plan.largest_page_tokens, 128);
  ASSERT_EQ(plan.groups.size(), 6U);
  EXPECT_EQ(plan.groups[0].window, 0);
  EXPECT_EQ(plan.groups[0].layout.page_size, 128);
  EXPECT_EQ(plan.groups[0].layers, (std::vector<int>{5, 11, 17, 23, 29, 35, 41, 47, 53, 59}));
  for (size_t g = 1; g < 6; ++g) {
    EXPECT_EQ(plan.groups[g].layout.page_size, 64);
    EXPECT_EQ(plan.groups[g].layers.size(), 10U);
  }
  EXPECT_EQ(plan.groups[1].layers.front(), 0);
}

TEST(CachePlan, Bf16CacheHasTheSameGroups) {
  const auto layers = hybrid(60, 6, layer(16, 256, 1024, KvDtype::kBF16), layer(4, 512, 0, KvDtype::kBF16));
  const CachePlan plan = plan_cache(layers, 64);
  expect_consistent(plan, layers);
  EXPECT_EQ(plan.groups.size(), 6U);
  EXPECT_EQ(plan.page_bytes, 1048576);
  EXPECT_EQ(plan.groups[0].layout.page_size, 128);
}

TEST(CachePlan, Gemma3With270MHasGroupsOfThree) {
  const auto layers = hybrid(18, 6, layer(1, 256, 512), layer(1, 256, 0));
  const CachePlan plan = plan_cache(layers, 64);
  expect_consistent(plan, layers);
  EXPECT_EQ(plan.num_slabs, 3);
  EXPECT_EQ(plan.groups.size(), 6U);
  EXPECT_EQ(plan.page_bytes, 64 * 512);
  EXPECT_EQ(plan.wasted_page_bytes, 0);
  EXPECT_EQ(plan.groups[0].layers, (std::vector<int>{5, 11, 17}));
}

TEST(CachePlan, LastGroupIsPaddedAndTheWasteReported) {
  const auto layers = hybrid(26, 6, layer(1, 256, 512), layer(1, 256, 0));  // Gemma 3 1B: 4 full, 22 sliding
  const CachePlan plan = plan_cache(layers, 64);
  expect_consistent(plan, layers);
  EXPECT_EQ(plan.num_slabs, 4);
  EXPECT_EQ(plan.groups.size(), 7U);
  EXPECT_EQ(plan.groups.back().layers.size(), 2U);
  EXPECT_EQ(plan.wasted_page_bytes, 2 * 64 * 512);
  EXPECT_NE(to_string(plan).find("waste: 65536 bytes"), std::string::npos);
  EXPECT_NE(to_string(plan).find("(7.14 %)"), std::string::npos);
}

TEST(CachePlan, PagesThatCannotBeEqualArePadded) {
  // 3 and 4 kv heads: 64 tokens of the larger kind take 4/3 of the smaller's bytes, and no page size makes that up.
  const std::vector<LayerCacheSpec> layers{layer(3, 64, 128), layer(4, 64, 0)};
  const CachePlan plan = plan_cache(layers, 64);
  expect_consistent(plan, layers);
  EXPECT_EQ(plan.page_bytes, 64 * 4 * 128);
  EXPECT_EQ(plan.groups[1].layout.page_size, 64);
  EXPECT_EQ(plan.wasted_page_bytes, 64 * 128);
}

TEST(CachePlan, PageSizeStopsAt128Tokens) {
  const std::vector<LayerCacheSpec> layers{layer(16, 256, 1024), layer(1, 256, 0)};  // 16x the bytes
  const CachePlan plan = plan_cache(layers, 64);
  expect_consistent(plan, layers);
  EXPECT_EQ(plan.groups[0].layout.page_size, 128);
  EXPECT_EQ(plan.wasted_page_bytes, 64 * 8192 - 128 * 512);
}

TEST(CachePlan, AllSlidingAndAllFullModels) {
  for (const int window : {0, 32}) {
    const std::vector<LayerCacheSpec> layers(7, layer(2, 64, window));
    const CachePlan plan = plan_cache(layers, 16);
    expect_consistent(plan, layers);
    EXPECT_EQ(plan.num_slabs, 7);
    EXPECT_EQ(plan.groups.size(), 1U);
    EXPECT_EQ(plan.wasted_page_bytes, 0);
  }
}

TEST(CachePlan, RefusesWhatNoCacheCanBe) {
  EXPECT_THROW((void)plan_cache({}, 64), Error);
  const std::vector<LayerCacheSpec> layers{layer(1, 64, 0)};
  for (const int block_size : {0, 8, 24, 256}) EXPECT_THROW((void)plan_cache(layers, block_size), Error);
  const std::vector<LayerCacheSpec> negative{layer(1, 64, -1)};
  EXPECT_THROW((void)plan_cache(negative, 64), Error);
}

TEST(CachePlan, BlocksForCountsWindowsAtTheWorstAlignment) {
  const std::vector<LayerCacheSpec> layers{layer(1, 64, 20), layer(1, 64, 0)};
  const CachePlan plan = plan_cache(layers, 16);
  // Full: ceil(n/16). Sliding: 20 visible keys touch at most 3 pages of 16.
  EXPECT_EQ(plan.blocks_for(0), 0);
  EXPECT_EQ(plan.blocks_for(1), 2);
  EXPECT_EQ(plan.blocks_for(16), 2);
  EXPECT_EQ(plan.blocks_for(17), 4);
  EXPECT_EQ(plan.blocks_for(48), 6);
  EXPECT_EQ(plan.blocks_for(49), 4 + 3);
  EXPECT_EQ(plan.blocks_for(160), 10 + 3);
  // A step of 30 tokens: the window's 19 earlier keys and 30 more, at most 4 pages.
  EXPECT_EQ(plan.blocks_for(160, 30), 10 + 4);
  EXPECT_EQ(plan.blocks_for(160, 1000), 10 + 10);
  EXPECT_EQ(plan.blocks_for(int64_t{1} << 40), (int64_t{1} << 36) + 3);
  EXPECT_THROW((void)plan.blocks_for(-1), Error);
  EXPECT_THROW((void)plan.blocks_for(1, 0), Error);
}

}  // namespace
}  // namespace quaver
