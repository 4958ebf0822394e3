// HostKvCache: slabs, lazy memory, and addresses beyond 32 bits.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "append_case.h"

namespace quaver {
namespace {

using testing::AppendCase;

CachePlan one_kind(int num_layers, const KvLayout& layout) {
  const std::vector<LayerCacheSpec> layers(static_cast<size_t>(num_layers), LayerCacheSpec{.layout = layout});
  return plan_cache(layers, layout.page_size);
}

constexpr KvLayout kLarge{.num_kv_heads = 4, .head_dim_k = 256, .head_dim_v = 256, .page_size = 64};  // 128 KiB pages

// B11: offsets pass 2^31 at page 16384 and 2^32 at page 32768. The pool is lazily zeroed, so it costs the touched
// pages.
TEST(HostKvCache, PagesBeyond32Bits) {
  HostKvCache cache(one_kind(1, kLarge), 33000);
  const TensorView pages = cache.pages(0);
  ASSERT_EQ(pages.dim(1), 131072);
  constexpr int64_t kLength = 3 * 64 - 5;
  const std::vector<std::vector<int32_t>> placements{{0, 1, 2}, {16383, 16384, 16385}, {32767, 32768, 32999}};
  NaturalKv first;
  for (const auto& table : placements) {
    std::vector<int64_t> slots;
    for (int64_t t = 0; t < kLength; ++t) slots.push_back(int64_t{table[static_cast<size_t>(t / 64)]} * 64 + t % 64);
    AppendCase append(kLarge, slots, 0, 11);
    AppendArgs args = append.args();
    args.pages = pages;
    append_kv(args);
    const NaturalKv kv = read_back(kLarge, pages, table, kLength, {}, {});
    if (first.k.empty()) {
      first = kv;
      for (size_t i = 0; i < kv.k.size(); ++i) ASSERT_EQ(kv.k[i], e4m3_decode(e4m3_encode(append.k[i])));
    }
    EXPECT_EQ(kv.k, first.k);
    EXPECT_EQ(kv.v, first.v);
  }
  // Nothing was written 4 GiB or 2 GiB lower or higher: neighbours are still zero.
  const auto* bytes = static_cast<const uint8_t*>(pages.data);
  for (const int64_t page : {3, 16382, 16386, 32766, 32769, 32998}) {
    EXPECT_TRUE(std::all_of(bytes + page * 131072, bytes + (page + 1) * 131072, [](uint8_t b) { return b == 0; }));
  }
  cache.copy_page(32768, 7);
  EXPECT_EQ(std::memcmp(bytes + int64_t{32768} * 131072, bytes + 7 * 131072, 131072), 0);
}

TEST(HostKvCache, SlabsFollowThePlanAndStartAtZero) {
  const KvLayout layout{.num_kv_heads = 1, .head_dim_k = 16, .head_dim_v = 16, .page_size = 16};
  std::vector<LayerCacheSpec> layers(7, LayerCacheSpec{.layout = layout, .window = 8});
  layers[2].window = layers[5].window = 0;
  HostKvCache cache(plan_cache(layers, 16), 5);
  const auto* base = static_cast<const uint8_t*>(cache.pages(2).data);
  for (int layer = 0; layer < 7; ++layer) {
    const TensorView pages = cache.pages(layer);
    EXPECT_EQ(pages.dim(0), 5);
    EXPECT_EQ(pages.dim(1), 512);
    EXPECT_EQ(static_cast<const uint8_t*>(pages.data) - base,
              cache.plan().places[static_cast<size_t>(layer)].slab * 5 * 512);
    EXPECT_EQ(static_cast<const uint8_t*>(pages.data)[5 * 512 - 1], 0);
  }
  EXPECT_THROW((void)cache.pages(7), Error);
  EXPECT_THROW((void)cache.pages(-1), Error);

  // copy_page() copies in every slab.
  for (const int layer : {2, 5})
    static_cast<uint8_t*>(cache.pages(layer).data)[3 * 512 + 9] = static_cast<uint8_t>(layer);
  cache.copy_page(3, 1);
  for (const int layer : {2, 5}) EXPECT_EQ(static_cast<const uint8_t*>(cache.pages(layer).data)[512 + 9], layer);
}

TEST(HostKvCache, LastSlabBeyond32Bits) {
  HostKvCache cache(one_kind(5, kLarge), 8200);  // slabs of 1.07 GB
  auto* first = static_cast<uint8_t*>(cache.pages(0).data);
  auto* last = static_cast<uint8_t*>(cache.pages(4).data);
  EXPECT_EQ(last - first, 4 * 8200LL * 131072);
  last[8200LL * 131072 - 1] = 1;
  EXPECT_EQ(first[(4 * 8200LL * 131072 + 8200LL * 131072 - 1) & 0xFFFFFFFF], 0);
}

TEST(HostKvCache, ALargePoolCostsNothingUntilUsed) {
  const auto peak_kb = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
  };
  const long before = peak_kb();
  HostKvCache cache(one_kind(1, kLarge), 33000);
  static_cast<uint8_t*>(cache.pages(0).data)[32999LL * 131072] = 1;
  EXPECT_LT(peak_kb() - before, 16 * 1024);
}

TEST(HostKvCache, NamesTheBytesThatAreNotToBeHad) {
  const CachePlan plan = one_kind(1, kLarge);
  try {
    const HostKvCache cache(plan, int64_t{1} << 31);  // 256 TiB: more than a 47-bit address space
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory);
    EXPECT_NE(std::string(error.what()).find("281474976710656 bytes"), std::string::npos) << error.what();
  }
  EXPECT_THROW(HostKvCache(plan, 0), Error);
  EXPECT_THROW(HostKvCache(plan, int64_t{1} << 50), Error);  // bytes beyond 2^63
  EXPECT_THROW(HostKvCache(CachePlan{}, 1), Error);
}

}  // namespace
}  // namespace quaver
