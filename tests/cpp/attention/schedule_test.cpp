// The work list without a GPU: all pieces together cover every tile of every sequence and kv head exactly once, parts
// are numbered without gaps, and slots never clash.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "attention/schedule/walker.h"
#include "testing/random.h"

namespace quaver::schedule {
namespace {

using testing::Random;

TEST(LineCut, PiecesCoverTheLineAndOwnersInvertThem) {
  for (const int grid : {1, 7, 132, 264}) {
    for (const int total : {0, 1, 6, 131, 264, 265, 4096, 34'000, 1'000'003}) {
      for (const int items : {1, 16, 5000}) {
        const LineCut line = cut_line(total, items, grid, 1 + items % 2, kMaxRounds);
        ASSERT_LE(line.rounds, kMaxRounds);
        ASSERT_LE(line.num_pieces(), grid * kMaxRounds);
        ASSERT_EQ(line.begin(0), 0);
        ASSERT_EQ(line.begin(line.num_pieces()), total);
        for (int piece = 0; piece < line.num_pieces(); ++piece) {
          const int begin = line.begin(piece);
          const int end = line.begin(piece + 1);
          ASSERT_LE(begin, end);
          if (line.rounds > 1) {
            ASSERT_GE(end - begin, kMinRoundUnits);
          }
          if (begin < end) {
            ASSERT_EQ(line.owner(begin), piece);
            ASSERT_EQ(line.owner(end - 1), piece);
          }
        }
      }
    }
  }
}

struct Batch {
  std::vector<int32_t> seq_lens;
  std::vector<int32_t> query_start{0};
  std::vector<int> units{0};
  std::vector<int> slots{0};

  [[nodiscard]] int units_before(int sequence) const { return units[static_cast<size_t>(sequence)]; }
  [[nodiscard]] int slots_before(int sequence) const { return slots[static_cast<size_t>(sequence)]; }
  [[nodiscard]] int sequence_of(int unit) const {
    int sequence = 0;
    while (units_before(sequence + 1) * heads <= unit) ++sequence;
    return sequence;
  }
  int heads = 1;
};

Batch make_batch(const ScheduleShape& shape, Random& random, int sequences, int longest) {
  Batch batch;
  batch.heads = shape.num_kv_heads;
  for (int b = 0; b < sequences; ++b) {
    const int length = random.below(4) == 0 ? 0 : static_cast<int>(random.below(longest + 1));
    batch.seq_lens.push_back(length);
    batch.query_start.push_back(batch.query_start.back() + static_cast<int32_t>(random.below(4)));
    const SequenceWork work = sequence_work(shape, shape.kv_tile, batch.query_start[static_cast<size_t>(b)],
                                            batch.query_start.back(), length);
    batch.units.push_back(batch.units.back() + work.units());
    batch.slots.push_back(batch.slots.back() + work.fixed_slots());
  }
  return batch;
}

class Walks : public ::testing::TestWithParam<std::tuple<bool, int>> {};

TEST_P(Walks, CoverEveryTileOnce) {
  const auto [fixed_splits, window] = GetParam();
  Random random(window + (fixed_splits ? 1 : 0));
  for (int repeat = 0; repeat < 60; ++repeat) {
    const ScheduleShape shape{.num_kv_heads = 1 + static_cast<int>(random.below(4)),
                              .group = 1 + static_cast<int>(random.below(8)),
                              .page_size = 64,
                              .kv_tile = repeat % 2 == 0 ? 64 : 128,
                              .mask = {.causal = true, .window = window},
                              .fixed_splits = fixed_splits};
    const int longest = repeat % 3 == 0 ? 300 : 20'000;
    const Batch batch = make_batch(shape, random, 1 + static_cast<int>(random.below(20)), longest);
    const SequenceLengths lengths{.seq_lens = batch.seq_lens.data(),
                                  .query_start = batch.query_start.data(),
                                  .num_sequences = static_cast<int>(batch.seq_lens.size())};
    const int grid = 1 + static_cast<int>(random.below(repeat % 4 == 0 ? 3 : 40));  // few CTAs: several rounds
    const int max_pieces = grid * kMaxRounds;
    const int total = batch.units.back() * shape.num_kv_heads;
    const LineCut line =
        cut_line(total, int64_t{lengths.num_sequences} * shape.num_kv_heads, grid, 1 + repeat % 2, kMaxRounds);

    std::map<std::tuple<int, int, int>, int> tiles;  // (sequence, head, tile) -> visits
    std::map<std::pair<int, int>, int> empty_items;  // (sequence, head) without a tile -> visits
    std::map<int, std::set<int>> parts;              // first slot -> parts seen
    std::map<int, int> num_parts;                    // first slot -> parts expected
    std::set<int> slots;
    for (int piece = 0; piece < std::max(grid, line.num_pieces()); ++piece) {
      WorkWalker walker(shape, lengths, shape.kv_tile, max_pieces, piece,
                        begin_piece(shape, lengths, line, piece, batch));
      WorkItem item{};
      while (walker.next(item)) {
        const auto b = static_cast<size_t>(item.sequence);
        ASSERT_EQ(item.kv_len, batch.seq_lens[b]);
        ASSERT_EQ(item.query_begin, batch.query_start[b]);
        ASSERT_EQ(item.query_len, batch.query_start[b + 1] - batch.query_start[b]);
        ASSERT_EQ(item.rows, item.query_len * shape.group);
        if (item.tile_begin == item.tile_end) ++empty_items[{item.sequence, item.head}];
        for (int tile = item.tile_begin; tile < item.tile_end; ++tile) ++tiles[{item.sequence, item.head, tile}];
        if (fixed_splits && item.tile_end > item.tile_begin) {
          const int split = tiles::kFixedSplitTokens / shape.kv_tile;
          ASSERT_EQ(item.tile_begin / split, (item.tile_end - 1) / split) << "an item crosses a split boundary";
        }
        ASSERT_LT(item.part, item.num_parts);
        if (item.num_parts == 1) continue;
        const PartSlots place{.first = item.first_slot, .rest = item.rest_slot};
        ASSERT_TRUE(slots.insert(place.slot(item.part)).second) << "slot used twice";
        ASSERT_TRUE(parts[item.first_slot].insert(item.part).second);
        num_parts[item.first_slot] = item.num_parts;
      }
    }
    for (const auto& [slot, seen] : parts) ASSERT_EQ(static_cast<int>(seen.size()), num_parts[slot]);
    for (const int slot : slots) {
      ASSERT_GE(slot, 0);
      ASSERT_LT(slot, fixed_splits ? batch.slots.back() * shape.num_kv_heads : 2 * max_pieces);
    }
    size_t expected_tiles = 0;
    for (int b = 0; b < lengths.num_sequences; ++b) {
      const int begin = batch.query_start[static_cast<size_t>(b)];
      const int end = batch.query_start[static_cast<size_t>(b) + 1];
      const SequenceWork work = sequence_work(shape, shape.kv_tile, begin, end, batch.seq_lens[static_cast<size_t>(b)]);
      for (int head = 0; head < shape.num_kv_heads; ++head) {
        const int visits = begin < end && work.num_tiles() == 0 ? 1 : 0;
        ASSERT_EQ(empty_items.count({b, head}), static_cast<size_t>(visits)) << "sequence " << b;
        for (int tile = work.first_tile; tile < work.last_tile; ++tile) {
          ASSERT_EQ((tiles[{b, head, tile}]), 1) << "sequence " << b << ", tile " << tile;
          ++expected_tiles;
        }
      }
    }
    ASSERT_EQ(tiles.size(), expected_tiles);
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, Walks, ::testing::Combine(::testing::Bool(), ::testing::Values(0, 100, 1024)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param) ? "fixed_splits" : "even_cut") + "_window" +
                                  std::to_string(std::get<1>(test.param));
                         });

// Fixed splits depend on the sequence alone.
TEST(SequenceWork, FixedSplitsAreAbsolute) {
  const ScheduleShape shape{.kv_tile = 64, .mask = {.causal = true, .window = 5000}, .fixed_splits = true};
  const SequenceWork work = sequence_work(shape, 64, 10, 11, 9000);
  EXPECT_EQ(work.first_key, 4000);
  EXPECT_EQ(work.num_splits, 3);  // 4000 … 4095, 4096 … 8191, 8192 … 8999
  EXPECT_EQ(item_tiles(work, 64, 0), (tiles::TileSpan{62, 64}));
  EXPECT_EQ(item_tiles(work, 64, 1), (tiles::TileSpan{64, 128}));
  EXPECT_EQ(item_tiles(work, 64, 2), (tiles::TileSpan{128, 141}));
  EXPECT_EQ(work.units(), 3 * kItemOverhead + 79);
  EXPECT_EQ(place_unit(work, 64, 2).split, 0);
  EXPECT_EQ(place_unit(work, 64, 3).split, 1);
  EXPECT_EQ(place_unit(work, 64, 3).offset, 0);
  EXPECT_EQ(place_unit(work, 64, 68).split, 2);
}

}  // namespace
}  // namespace quaver::schedule
