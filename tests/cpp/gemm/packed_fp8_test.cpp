// Layout, tiles and plans of the packed FP8 GEMM: what its GPU kernel relies on, without a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "core/check.h"
#include "gemm/packed_fp8/plan.h"
#include "testing/expect_error.h"

namespace quaver::packed_fp8 {
namespace {

using quaver::testing::expect_error;

constexpr MaxClusters kH200{0, 132, 66, 39, 30};

TEST(PackedLayout, SpelledOut) {
  EXPECT_EQ(packed_offset(0, 0, 300), 0);
  EXPECT_EQ(packed_offset(0, 15, 300), 15);
  EXPECT_EQ(packed_offset(1, 0, 300), 16);
  EXPECT_EQ(packed_offset(0, 16, 300), 128);
  EXPECT_EQ(packed_offset(8, 0, 300), 1024);
  EXPECT_EQ(packed_offset(0, 128, 300), 16384);
  EXPECT_EQ(packed_offset(127, 127, 300), 16383);
  EXPECT_EQ(packed_offset(128, 0, 300), 3 * 16384);  // 300 columns are 3 chunks
  EXPECT_EQ(packed_bytes(129, 300), 2 * 3 * 16384);
  EXPECT_EQ(packed_bytes(0, 300), 0);
  EXPECT_EQ(packed_offset(262143, 21503, 21504), int64_t{262144} * 21504 - 1);  // beyond 32 bits
}

TEST(PackedLayout, EveryByteOnce) {
  for (const auto& [rows, columns] : {std::pair{1, 1}, {128, 128}, {131, 257}, {300, 384}}) {
    std::vector<int> uses(static_cast<size_t>(packed_bytes(rows, columns)));
    const auto padded = static_cast<int>(num_chunks(columns)) * kChunk;
    for (int row = 0; row < (rows + 127) / 128 * 128; ++row) {
      for (int column = 0; column < padded; ++column) {
        ++uses.at(static_cast<size_t>(packed_offset(row, column, columns)));
      }
    }
    EXPECT_EQ(std::ranges::count(uses, 1), std::ssize(uses)) << rows << "x" << columns;
  }
}

TEST(PackedLayout, GroupsOfAChunkAreContiguous) {
  for (int group = 0; group < 40; ++group) {
    EXPECT_EQ(group_offset(group, 2, 5), packed_offset(8 * group, 256, 640));
    if (group % kBlockGroups != 0) {
      EXPECT_EQ(group_offset(group, 2, 5), group_offset(group - 1, 2, 5) + kGroupBytes);
    }
  }
}

/// Every row group, token group and chunk is multiplied exactly once, and no tile is larger than the kernel's.
template <int kRowGranule = 1>
void expect_cover(const GemmPlan& plan, const GemmShape& shape) {
  const TileGrid& grid = plan.grid;
  ASSERT_GE(plan.num_clusters, 1);
  ASSERT_LE(grid.cluster(), kMaxCluster);
  ASSERT_EQ(grid.row_groups, (shape.n + 7) / 8);
  ASSERT_EQ(grid.token_groups, (shape.m + 7) / 8);
  ASSERT_EQ(grid.chunks, (shape.k + 127) / 128);
  ASSERT_LE(grid.split, grid.chunks);
  std::vector<int64_t> chunks_done(static_cast<size_t>(grid.row_groups * grid.token_groups));
  int most = 0;
  std::map<std::pair<int, int>, std::pair<int, int>> parts;  // (first CTA, token tile's first group) to (parts, seen)
  for (int cluster = 0; cluster < plan.num_clusters; ++cluster) {
    for (int rank = 0; rank < grid.cluster(); ++rank) {
      int taken = 0;
      int partial = 0;
      for (WorkList<kRowGranule> list(grid, cluster, plan.num_clusters, rank); list.more(); ++taken) {
        const Work work = list.take();
        const Tile& tile = work.tile;
        ASSERT_LE((tile.row_end - tile.row_begin) * 8, grid.row_tile);
        ASSERT_EQ(tile.row_begin % kRowGranule, 0);
        ASSERT_EQ(tile.row_end % kRowGranule, 0);
        ASSERT_LE((tile.token_end - tile.token_begin) * 8, grid.token_tile);
        ASSERT_LT(tile.token_begin, tile.token_end);
        ASSERT_LT(tile.chunk_begin, tile.chunk_end);
        if (work.parts > 1) {
          // Part i is computed by CTA first_cta + i * token tiles; the first begins the tile, no other does.
          const int part = (cluster - work.first_cta) / grid.token_tiles();
          ASSERT_EQ(work.first_cta + part * grid.token_tiles(), cluster);
          ASSERT_LT(part, work.parts);
          ASSERT_EQ(part == 0, tile.chunk_begin == 0);
          ASSERT_EQ(part == work.parts - 1, tile.chunk_end == grid.chunks);
          auto& [count, seen] = parts[{work.first_cta, tile.row_begin}];
          ASSERT_TRUE(seen == 0 || count == work.parts);
          count = work.parts;
          ++seen;
          ++partial;
        }
        for (int row = tile.row_begin; row < tile.row_end; ++row) {
          for (int token = tile.token_begin; token < tile.token_end; ++token) {
            chunks_done.at(static_cast<size_t>(row * grid.token_groups + token)) += tile.chunk_end - tile.chunk_begin;
          }
        }
      }
      ASSERT_LE(partial, 2);  // a workspace has room for two parts a CTA
      most = std::max(most, taken);
    }
  }
  EXPECT_EQ(std::ranges::count(chunks_done, grid.chunks), std::ssize(chunks_done));
  std::set<int> first_ctas;  // each counts the parts of one tile
  for (const auto& [tile, part] : parts) {
    EXPECT_EQ(part.first, part.second);
    EXPECT_TRUE(first_ctas.insert(tile.first).second);
  }
  if (grid.ranges == 0) {
    EXPECT_EQ(most, plan.waves);
  }
}

/// The parts of K in a cluster are in the order of the ranks.
void expect_parts_in_order(const TileGrid& grid) {
  int last_chunk = 0;
  for (int part = 0; part < grid.split; ++part) {
    const Tile tile = tile_at(grid, 0, grid.rank_of(0, part));
    EXPECT_EQ(tile.chunk_begin, last_chunk);
    last_chunk = tile.chunk_end;
  }
  EXPECT_EQ(last_chunk, grid.chunks);
}

TEST(GemmPlan, TilesCoverEveryShapeOnce) {
  const std::vector<MaxClusters> devices{kH200, {0, 1, 0, 0, 0}, {0, 7, 3, 2, 1}, {0, 3, 0, 1, 0}};
  for (const MaxClusters& device : devices) {
    for (const int64_t m : {1, 7, 8, 9, 64, 77, 128, 129, 200, 256, 1000, 3001}) {
      for (const int64_t n : {1, 8, 61, 128, 129, 1000, 5376}) {
        for (const int64_t k : {1, 128, 129, 500, 21504}) {
          for (const Scaling scaling : {Scaling::kOuter, Scaling::kBlock}) {
            const GemmShape shape{.m = m, .n = n, .k = k};
            double fewest = 1e30;
            for (const GemmPlan& plan : possible_plans(shape, scaling, device)) {
              SCOPED_TRACE(concat("SMs ", device[1], ", m ", m, ", n ", n, ", k ", k, ": ", to_string(plan)));
              expect_cover(plan, shape);
              if (::testing::Test::HasFatalFailure()) return;
              if (plan.grid.ranges == 0) expect_parts_in_order(plan.grid);
              EXPECT_LE(plan.num_clusters, device.at(static_cast<size_t>(plan.grid.cluster())));
              fewest = std::min(fewest, plan.clocks);
            }
            EXPECT_EQ(plan_gemm(shape, scaling, device).clocks, fewest);
          }
        }
      }
    }
  }
}

// Rows of gate and up of an output are in one tile: whole 16 packed rows.
TEST(GemmPlan, TilesOfGateAndUp) {
  for (const MaxClusters& device : {kH200, MaxClusters{0, 1, 0, 0, 0}, MaxClusters{0, 7, 3, 2, 1}}) {
    for (const int64_t m : {1, 7, 77, 128, 200, 256, 3001}) {
      for (const int64_t n : {16, 48, 128, 144, 1008, 10752}) {
        for (const int64_t k : {1, 129, 5376}) {
          const GemmShape shape{.m = m, .n = n, .k = k};
          for (const GemmPlan& plan : possible_plans(shape, Scaling::kOuter, device, Output::kGeglu)) {
            SCOPED_TRACE(concat("SMs ", device[1], ", m ", m, ", n ", n, ", k ", k, ": ", to_string(plan)));
            expect_cover<row_granule(Output::kGeglu)>(plan, shape);
            if (::testing::Test::HasFatalFailure()) return;
          }
        }
      }
    }
  }
  const auto plan = [](int64_t m) {
    return to_string(plan_gemm({.m = m, .n = 43008, .k = 5376}, Scaling::kOuter, kH200, Output::kGeglu));
  };
  EXPECT_EQ(plan(64), "tile 112x64, K in 1, 396 tiles on 132 clusters (3 waves)");
  EXPECT_EQ(plan(128), "high tile 168x128, K in 1, 264 tiles on 132 clusters (2 waves)");
  EXPECT_EQ(plan(8192), "tile 128x192, pairs, K in 1, 7224 tiles on 66 clusters (110 waves)");
}

TEST(PackedLayout, PartsTakeTurns) {
  EXPECT_EQ(part_row(0, 7, 2), 7);
  EXPECT_EQ(part_row(8, 0, 2), 8);
  EXPECT_EQ(part_row(0, 8, 2), 16);
  EXPECT_EQ(part_row(8, 21503, 2), 43007);
  EXPECT_EQ(part_row(13, 21, 1), 34);
}

TEST(GemmPlan, RowsAloneFillTheDeviceWhereTheyCan) {
  const GemmPlan gate_up = plan_gemm({.m = 64, .n = 43008, .k = 5376}, Scaling::kOuter, kH200);
  EXPECT_EQ(to_string(gate_up), "tile 112x64, K in 1, 396 tiles on 132 clusters (3 waves)");
  const GemmPlan qkv = plan_gemm({.m = 16, .n = 16384, .k = 5376}, Scaling::kOuter, kH200);
  EXPECT_EQ(to_string(qkv), "tile 128x16, K in 1, 132 tiles on 132 clusters (1 wave)");
}

TEST(GemmPlan, FewRowsSplitK) {
  const GemmPlan down = plan_gemm({.m = 8, .n = 5376, .k = 21504}, Scaling::kOuter, kH200);
  EXPECT_EQ(to_string(down), "tile 88x8, K in 2, 66 tiles on 66 clusters (1 wave)");
}

// 65 to 128 tokens: fewer waves, fewer tokens through L2.
TEST(GemmPlan, HighTiles) {
  const auto plan = [](int64_t m, int64_t n, int64_t k, Scaling scaling = Scaling::kOuter) {
    return to_string(plan_gemm({.m = m, .n = n, .k = k}, scaling, kH200));
  };
  for (const int64_t m : {65, 128}) {
    EXPECT_EQ(plan(m, 43008, 5376), "high tile 168x128, K in 1, 264 tiles on 132 clusters (2 waves)");
    EXPECT_EQ(plan(m, 18432, 5376), "high tile 144x128, K in 1, 132 tiles on 132 clusters (1 wave)");
    EXPECT_EQ(plan(m, 5376, 21504), "high tile 144x128, K in 3, 39 tiles on 39 clusters (1 wave)");
    EXPECT_EQ(plan(m, 16384, 5376), "tile 128x128, K in 1, 132 tiles on 132 clusters (1 wave)");
  }
  EXPECT_EQ(plan(128, 5376, 21504, Scaling::kBlock), "tile 128x128, 126 ranges of 56 chunks");  // 3 parts a tile
  for (const GemmPlan& other : possible_plans({.m = 129, .n = 18432, .k = 5376}, Scaling::kOuter, kH200)) {
    EXPECT_EQ(other.grid.row_tile, kBlockRows);
  }
}

TEST(GemmPlan, RangesEvenOutWhatWavesDoNotFill) {
  const GemmPlan one = plan_gemm({.m = 128, .n = 18432, .k = 5376}, Scaling::kBlock, kH200);
  EXPECT_EQ(to_string(one), "tile 128x128, 132 ranges of 46 chunks");
  const GemmPlan two = plan_gemm({.m = 256, .n = 5376, .k = 21504}, Scaling::kOuter, kH200);
  EXPECT_EQ(to_string(two), "tile 128x128, 132 ranges of 107 chunks");  // 66 for each token tile
  const GemmPlan whole = plan_gemm({.m = 256, .n = 5376, .k = 8192}, Scaling::kOuter, kH200);
  EXPECT_EQ(to_string(whole), "tile 128x128, 84 ranges of 64 chunks");  // a tile each, on 84 of 132 CTAs
}

// 64 chunks in three ranges of 21 or 22: the same three of every row tile, so that no CTA has parts of two.
TEST(GemmPlan, EqualRangesEndWithTheirTile) {
  const GemmShape shape{.m = 128, .n = 5376, .k = 8192};
  const auto plans = possible_plans(shape, Scaling::kOuter, kH200);
  const auto plan = std::ranges::find_if(plans, [](const GemmPlan& p) { return p.grid.ranges == 126; });
  ASSERT_NE(plan, plans.end());
  for (int cta = 0; cta < 126; ++cta) {
    WorkList list(plan->grid, cta, 126, 0);
    const Work work = list.take();
    EXPECT_EQ(work.parts, 3);
    EXPECT_EQ(work.first_cta, cta / 3 * 3);
    EXPECT_FALSE(list.more());
  }
}

TEST(GemmPlan, PairsShareManyTokens) {
  const GemmPlan prefill = plan_gemm({.m = 8192, .n = 43008, .k = 5376}, Scaling::kOuter, kH200);
  EXPECT_EQ(to_string(prefill), "tile 128x192, pairs, K in 1, 7224 tiles on 66 clusters (110 waves)");
  const GemmPlan blocks = plan_gemm({.m = 8192, .n = 43008, .k = 5376}, Scaling::kBlock, kH200);
  EXPECT_TRUE(blocks.grid.pairs);
  EXPECT_EQ(blocks.grid.token_tile, 128);
}

// 43 token tiles of 192: bands of even width whose tokens (15 MB at K = 5,376) stay in L2, at least 8 tiles wide.
TEST(GemmPlan, BandsOfTokensStayInL2) {
  const auto band = [](int64_t m, int64_t k) {
    return plan_gemm({.m = m, .n = 5376, .k = k}, Scaling::kOuter, kH200).grid.band;
  };
  EXPECT_EQ(band(8192, 5376), 15);
  EXPECT_EQ(band(8192, 8192), 11);
  EXPECT_EQ(band(8192, 21504), 8);
  EXPECT_EQ(band(512, 5376), 3);
  EXPECT_EQ(band(1, 5376), 1);
}

TEST(GemmPlan, OneTileHoldsUpTo128Tokens) {
  for (int64_t m = 1; m <= 128; ++m) {
    const GemmPlan plan = plan_gemm({.m = m, .n = 5376, .k = 8192}, Scaling::kOuter, kH200);
    EXPECT_GE(plan.grid.token_tile, m);
    EXPECT_LT(plan.grid.token_tile, std::max<int64_t>(2 * m, 9));
  }
}

TEST(GemmPlan, FixedOrderIsOneChainOverK) {
  for (const Output output : {Output::kRows, Output::kGeglu}) {
    for (const int64_t m : {1, 8, 60, 128, 129, 1000, 8192}) {
      const GemmShape shape{.m = m, .n = 5376, .k = 21504};
      const auto plans = possible_plans(shape, Scaling::kOuter, kH200, output, SumOrder::kFixed);
      ASSERT_FALSE(plans.empty());
      for (const GemmPlan& plan : plans) {
        SCOPED_TRACE(concat("m ", m, ": ", to_string(plan)));
        EXPECT_EQ(plan.grid.split, 1);
        EXPECT_EQ(plan.grid.ranges, 0);
        EXPECT_GE(plan.grid.token_tile, 128);  // all promote every 1,024 columns
        expect_cover(plan, shape);
      }
      EXPECT_EQ(plan_gemm(shape, Scaling::kOuter, kH200, output, SumOrder::kFixed).grid.split, 1);
    }
  }
  const GemmShape few{.m = 1, .n = 5376, .k = 21504};
  EXPECT_EQ(plan_gemm(few, Scaling::kBlock, kH200, Output::kRows, SumOrder::kFixed).grid.token_tile, 8);
}

TEST(GemmPlan, RefusesSizesByName) {
  const auto plan = [](GemmShape shape) { return [shape] { (void)plan_gemm(shape, Scaling::kOuter, kH200); }; };
  expect_error(plan({.m = 0, .n = 1, .k = 1}), ErrorKind::kInvalidArgument, {"tokens 0", "expected"});
  expect_error(plan({.m = 1, .n = 0, .k = 1}), ErrorKind::kInvalidArgument, {"out features 0", "expected"});
  expect_error(plan({.m = 1, .n = 1, .k = -5}), ErrorKind::kInvalidArgument, {"in features -5", "expected"});
  expect_error([] { (void)plan_gemm({.m = 1, .n = 24, .k = 1}, Scaling::kOuter, kH200, Output::kGeglu); },
               ErrorKind::kInvalidArgument, {"out features 24", "multiple of 16"});
  expect_error(plan({.m = int64_t{1} << 40, .n = 1, .k = 1}), ErrorKind::kInvalidArgument, {"tokens", "expected"});
}

}  // namespace
}  // namespace quaver::packed_fp8
