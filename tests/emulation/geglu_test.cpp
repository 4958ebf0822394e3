// The product with the gate of an MLP behind it: every token tile, cluster and kind of plan.
#include "geglu_case.h"

#include "simt/launch.h"

namespace quaver::testing {
namespace {

using packed_fp8::GemmPlan;
using packed_fp8::Output;

GemmSpec spec(int64_t m, int64_t n, int64_t k) {
  return {.shape = {.m = m, .n = n, .k = k}, .output = Output::kGeglu};
}

TEST(Geglu, AsPlanned) {
  for (const int64_t m : {1, 7, 13, 31, 60, 128}) {
    GemmCase test(spec(m, 272, 300));
    expect_geglu(test, test.plan(), test.expected_geglu(), 8);
  }
}

// Row tiles of uneven height, whole 16 rows each; K in parts of which some begin at odd blocks; pairs that share
// tokens.
TEST(Geglu, EveryCluster) {
  struct Cluster {
    int token_tile = 16;
    int split = 1;
    bool pairs = false;
  };
  for (const auto& [token_tile, split, pairs] :
       {Cluster{8, 2}, Cluster{16, 2}, Cluster{32, 3}, Cluster{64, 4}, Cluster{16, 1, true}, Cluster{32, 2, true}}) {
    GemmCase test(spec(45, 208, 700));
    const GemmPlan plan{.grid = {.row_groups = 26,
                                 .token_groups = 6,
                                 .chunks = 6,
                                 .token_tile = token_tile,
                                 .row_tiles = 2,
                                 .split = split,
                                 .pairs = pairs},
                        .num_clusters = 1};
    expect_geglu(test, plan, test.expected_geglu());
  }
}

TEST(Geglu, Ranges) {
  for (const int ranges : {1, 3, 5, 12}) {
    GemmCase test(spec(21, 208, 700));
    GemmPlan plan{
        .grid = {.row_groups = 26, .token_groups = 3, .chunks = 6, .token_tile = 16, .row_tiles = 2, .ranges = ranges}};
    plan.num_clusters = ranges * plan.grid.token_tiles();
    expect_geglu(test, plan, test.expected_geglu());
  }
}

// Outputs that go out as boxes of 64 packed rows: a second warpgroup whose rows overlap the first one's, a tile too low
// for a box, rows and tokens that end inside one; a tile of 8 tokens, whose staging has room for 16.
TEST(Geglu, Boxes) {
  for (const auto& [rows, row_tiles] : {std::pair{256, 2}, {208, 2}, {144, 2}, {48, 1}}) {
    for (const int token_tile : {8, 32}) {
      GemmCase test(spec(45, rows, 300));
      const GemmPlan plan{.grid = {.row_groups = rows / 8,
                                   .token_groups = 6,
                                   .chunks = 3,
                                   .token_tile = token_tile,
                                   .row_tiles = row_tiles},
                          .num_clusters = 1};
      expect_geglu(test, plan, test.expected_geglu(), 8);
    }
  }
}

// Tokens as the 64-row operand: tiles of 176 and 160 rows, tokens that end inside the second warpgroup and before it.
TEST(Geglu, HighTiles) {
  for (const int64_t tokens : {45, 77, 128}) {
    GemmCase test(spec(tokens, 336, 700));
    const GemmPlan plan{.grid = {.row_groups = 42,
                                 .token_groups = static_cast<int>(tokens + 7) / 8,
                                 .chunks = 6,
                                 .token_tile = 128,
                                 .row_tile = 176,
                                 .row_tiles = 2},
                        .num_clusters = 1,
                        .waves = 2};
    expect_geglu(test, plan, test.expected_geglu(), 8);
  }
}

// The largest tile, in pairs; the last one holds 8, 128, 136 tokens of 192.
TEST(Geglu, ManyTokens) {
  for (const int tokens : {200, 320, 328}) {
    GemmCase test({.shape = {.m = tokens, .n = 144, .k = 300}, .one_token_scale = true, .output = Output::kGeglu});
    const GemmPlan plan{.grid = {.row_groups = 18,
                                 .token_groups = tokens / 8,
                                 .chunks = 3,
                                 .token_tile = 192,
                                 .row_tiles = 2,
                                 .pairs = true},
                        .num_clusters = 1};
    expect_geglu(test, plan, test.expected_geglu());
  }
}

// Whichever part of a tile is last.
TEST(Geglu, AnyOrderOfThreads) {
  GemmCase test({.shape = {.m = 45, .n = 208, .k = 700}, .data = GemmData::kNormal, .output = Output::kGeglu});
  GemmPlan ranges{
      .grid = {.row_groups = 26, .token_groups = 6, .chunks = 6, .token_tile = 16, .row_tiles = 2, .ranges = 5}};
  ranges.num_clusters = 5 * ranges.grid.token_tiles();
  for (const GemmPlan& plan : {test.plan(), ranges}) {
    const std::vector<float> first = test.run_geglu(plan, nullptr);
    for (uint64_t seed = 1; seed <= 2; ++seed) {
      const simt::RandomOrder order(seed);
      EXPECT_EQ(test.run_geglu(plan, nullptr), first);
    }
  }
}

TEST(Geglu, NanStaysInItsTokenAndRow) {
  GemmCase test(spec(21, 208, 300));
  expect_geglu_nan_stays(test, test.plan());
}

}  // namespace
}  // namespace quaver::testing
