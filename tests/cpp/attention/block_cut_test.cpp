// Cuts of row blocks over their keys: parts cover a block's tiles once, fit one wave where items are few, and leave
// prompts alone.
#include "attention/schedule/block_cut.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "attention/schedule/row_blocks.h"
#include "testing/random.h"

namespace quaver::schedule {
namespace {

constexpr int kSms = 132;

struct Lengths {
  int query_len = 0;
  int kv_len = 0;
};

/// The blocks of a step, whole.
std::vector<RowBlock> whole_blocks(const BlockShape& shape, const std::vector<Lengths>& sequences) {
  std::vector<RowBlock> blocks;
  for (const Lengths& s : sequences) {
    for (int i = 0; i < num_row_blocks(shape, s.query_len); ++i) {
      blocks.push_back(row_block(shape, 0, 0, s.query_len, s.kv_len, i));
    }
  }
  return blocks;
}

struct Cut {
  int max_tiles = 0;         ///< of a part
  std::vector<int> parts{};  ///< by block
  [[nodiscard]] int total() const { return std::accumulate(parts.begin(), parts.end(), 0); }
  [[nodiscard]] int slots(int heads) const {
    int slots = 0;
    for (const int n : parts) slots += n > 1 ? n * heads : 0;
    return slots;
  }
};

int count_parts(const std::vector<RowBlock>& blocks, int max_tiles) {
  int count = 0;
  for (const RowBlock& block : blocks) count += num_parts(block.num_tiles(), max_tiles);
  return count;
}

Cut cut(const std::vector<RowBlock>& blocks, int heads, int grid) {
  BlockTotals totals{.num_kv_heads = heads};
  for (const RowBlock& block : blocks) {
    totals.tiles += block.num_tiles();
    totals.longest = std::max(totals.longest, block.num_tiles());
    ++totals.blocks;
  }
  Cut result{.max_tiles = max_part_tiles(totals, grid, [&](int n) { return count_parts(blocks, n); })};
  for (const RowBlock& block : blocks) result.parts.push_back(num_parts(block.num_tiles(), result.max_tiles));
  return result;
}

TEST(BlockCut, PartsCoverABlockOnce) {
  const BlockShape shape{.group = 2, .block_rows = 128, .kv_tile = 128};
  const RowBlock whole = row_block(shape, 3, 50, 128, 10000, 0);
  for (int parts = 1; parts <= whole.num_tiles(); ++parts) {
    int next = whole.tile_begin;
    for (int part = 0; part < parts; ++part) {
      const RowBlock block = block_part(whole, part, parts, 7);
      ASSERT_EQ(block.tile_begin, next);
      ASSERT_GT(block.tile_end, block.tile_begin);
      ASSERT_LE(block.num_tiles(), (whole.num_tiles() + parts - 1) / parts);
      ASSERT_EQ(block.part, part);
      ASSERT_EQ(block.num_parts, parts);
      ASSERT_EQ(block.head_slot(3), 7 + 3 * parts);
      ASSERT_EQ(block.first_row, whole.first_row);
      next = block.tile_end;
    }
    ASSERT_EQ(next, whole.tile_end);
  }
}

TEST(BlockCut, FewRowsOverALongContextFillTheSms) {
  // d256_b1_q128_kv131072: two blocks of 128 rows for 16 heads; d512_b8_q8_kv32768: eight of 64 rows for 4 heads.
  const Cut one = cut(whole_blocks({.group = 2}, {{128, 131072}}), 16, kSms);
  EXPECT_EQ(one.parts, (std::vector<int>{4, 4}));
  EXPECT_EQ(one.max_tiles, 256);
  const BlockShape wide{.group = 8, .block_rows = 64, .kv_tile = 64};
  const Cut eight = cut(whole_blocks(wide, std::vector<Lengths>(8, {8, 32768})), 4, kSms);
  EXPECT_EQ(eight.parts, std::vector<int>(8, 4));
  const Cut ragged = cut(whole_blocks({.group = 2}, {{40, 131072}, {20, 32768}, {64, 1000}}), 4, kSms);
  EXPECT_EQ(ragged.parts, (std::vector<int>{25, 7, 1}));  // parts of 41 and 37 tiles
}

TEST(BlockCut, PromptsAreNotCut) {
  for (const std::vector<Lengths>& sequences : {std::vector<Lengths>{{8192, 8192}},
                                                {{512, 512}, {100, 100}},
                                                {{2048, 32768}},
                                                {{1024, 1024}},
                                                {{60, 1024}},
                                                {{0, 500}},
                                                {}}) {
    for (const int window : {0, 1024}) {
      const BlockShape shape{.group = 2, .mask = {.causal = true, .window = window}};
      const std::vector<RowBlock> blocks = whole_blocks(shape, sequences);
      EXPECT_EQ(cut(blocks, 16, kSms).total(), static_cast<int>(blocks.size()));
    }
  }
}

// A chunk at the end of a long context beside a prompt: alone it would take four times as long as all the rest.
TEST(BlockCut, AStragglerBesideAPromptIsCut) {
  const std::vector<RowBlock> blocks = whole_blocks({.group = 2}, {{64, 131072}, {1900, 1900}});
  const Cut result = cut(blocks, 16, kSms);
  EXPECT_EQ(result.parts[0], 7);
  for (size_t i = 1; i < result.parts.size(); ++i) EXPECT_EQ(result.parts[i], 1);
}

TEST(BlockCut, AllPartsFitOneWaveAndTheWorkspace) {
  testing::Random random(3);
  const auto below = [&](int n) { return static_cast<int>(random.below(n)); };
  int cut_steps = 0;
  for (int step = 0; step < 2000; ++step) {
    const BlockShape shape{.group = 1 + below(8), .block_rows = 64 * (1 + below(3)), .kv_tile = 128};
    const int heads = 1 + below(16);
    std::vector<Lengths> sequences(static_cast<size_t>(1 + below(6)));
    for (Lengths& s : sequences) {
      s.kv_len = below(step % 2 == 0 ? 4000 : 200000);
      s.query_len = below(200);
    }
    const std::vector<RowBlock> blocks = whole_blocks(shape, sequences);
    const Cut result = cut(blocks, heads, kSms);
    const auto items = static_cast<int64_t>(blocks.size()) * heads;
    cut_steps += result.slots(heads) > 0 ? 1 : 0;
    ASSERT_LE(result.slots(heads), max_part_slots(kSms));
    if (items > kSms) continue;
    ASSERT_LE(int64_t{result.total()} * heads, kSms);
    if (result.max_tiles > kMinPartTiles && result.slots(heads) > 0) {
      ASSERT_GT(int64_t{count_parts(blocks, result.max_tiles - 1)} * heads, kSms) << "shorter parts fit too";
    }
  }
  EXPECT_GT(cut_steps, 200);
}

}  // namespace
}  // namespace quaver::schedule
