// The packed FP8 GEMM: packing, plan, launch, clusters. Integer data, so that every output equals the reference
// exactly.
#include <gtest/gtest.h>

#include "gemm_case.h"
#include "simt/launch.h"

namespace quaver::testing {
namespace {

using packed_fp8::GemmPlan;
using packed_fp8::Scaling;

void expect_exact(GemmCase& test, const GemmPlan& plan, DType dtype, int64_t padding = 3) {
  SCOPED_TRACE(concat(to_string(plan), test.spec().scaling == Scaling::kBlock ? ", block scales" : ", outer scales"));
  const std::vector<double> expected = test.expected();
  const GemmOutput output = test.run(plan, dtype, nullptr, padding);
  int64_t wrong = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto exact = static_cast<float>(expected[i]);
    if (output.values[i] != (dtype == DType::kF32 ? exact : to_float(to_bf16(exact)))) ++wrong;
  }
  EXPECT_EQ(wrong, 0);
  const simt::RandomOrder order(1);
  EXPECT_TRUE(output.bits == test.run(plan, dtype, nullptr, padding).bits) << "another order of threads";
}

// Clusters of 1 to 4 CTAs: K in parts, pairs that share tokens, both; several tiles a cluster, of uneven rows.
TEST(Gemm, ExactInEveryCluster) {
  struct Cluster {
    int split = 1;
    bool pairs = false;
  };
  for (const Scaling scaling : {Scaling::kOuter, Scaling::kBlock}) {
    for (const auto& [split, pairs] : {Cluster{1, false}, {2, false}, {3, false}, {4, false}, {1, true}, {2, true}}) {
      GemmCase test({.shape = {.m = 21, .n = 200, .k = 700}, .scaling = scaling});
      const GemmPlan plan{.grid = {.row_groups = 25,
                                   .token_groups = 3,
                                   .chunks = 6,
                                   .token_tile = 16,
                                   .row_tiles = 2,
                                   .split = split,
                                   .pairs = pairs},
                          .num_clusters = 1,
                          .waves = 2};
      expect_exact(test, plan, DType::kF32);
    }
  }
}

// Tiles in up to six parts, whole tiles beside parts, two token tiles.
TEST(Gemm, ExactInRanges) {
  for (const Scaling scaling : {Scaling::kOuter, Scaling::kBlock}) {
    for (const int ranges : {1, 2, 3, 5, 12}) {
      GemmCase test({.shape = {.m = 21, .n = 200, .k = 700}, .scaling = scaling});
      GemmPlan plan{
          .grid = {
              .row_groups = 25, .token_groups = 3, .chunks = 6, .token_tile = 16, .row_tiles = 2, .ranges = ranges}};
      plan.num_clusters = ranges * plan.grid.token_tiles();
      expect_exact(test, plan, DType::kF32);
      EXPECT_TRUE(device_counters_are_zero());
    }
  }
}

// Whichever part reports last, the sums are those of the same order: data that rounds, four parts a tile.
TEST(Gemm, PartsInAnyOrder) {
  GemmCase test({.shape = {.m = 13, .n = 250, .k = 1100}, .data = GemmData::kNormal});
  const GemmPlan plan{
      .grid = {.row_groups = 32, .token_groups = 2, .chunks = 9, .token_tile = 16, .row_tiles = 2, .ranges = 8},
      .num_clusters = 8};
  const std::vector<uint32_t> expected = test.run(plan, DType::kF32, nullptr).bits;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    const simt::RandomOrder order(seed);
    EXPECT_TRUE(expected == test.run(plan, DType::kF32, nullptr).bits) << "order " << seed;
  }
  EXPECT_TRUE(device_counters_are_zero());
}

// BF16 rows that go out as boxes of 64 rows: a second warpgroup whose rows overlap the first one's, a tile too low for
// a box, tokens and rows that end inside one, three tiles that share a staging.
TEST(Gemm, ExactInBoxes) {
  for (const auto& [rows, row_tiles] : {std::pair{200, 2}, {136, 2}, {64, 1}, {44, 1}}) {
    for (const int tokens : {21, 128}) {
      GemmCase test({.shape = {.m = tokens, .n = rows, .k = 300}});
      const GemmPlan plan{.grid = {.row_groups = (rows + 7) / 8,
                                   .token_groups = (tokens + 7) / 8,
                                   .chunks = 3,
                                   .token_tile = 32,
                                   .row_tiles = row_tiles},
                          .num_clusters = 1};
      expect_exact(test, plan, DType::kBF16, (8 - rows % 8) % 8 + 8);
    }
  }
}

// Tokens as the 64-row operand: every split, tiles in one, two and (the last one's third tile) three blocks of rows,
// several tiles a cluster, few and 128 tokens, outputs by pieces and one by one.
TEST(Gemm, ExactInHighTiles) {
  struct High {
    int64_t tokens = 0;
    int rows = 0;
    int split = 1;
    int tiles = 2;
  };
  for (const auto& [tokens, rows, split, tiles] :
       {High{128, 144, 1}, {77, 144, 2}, {120, 144, 3}, {65, 144, 4}, {128, 176, 1}, {71, 176, 1, 3}}) {
    const int n = tiles == 2 ? rows + 45 : tiles * rows - 3;
    GemmCase test({.shape = {.m = tokens, .n = n, .k = 500}});
    const GemmPlan plan{.grid = {.row_groups = (n + 7) / 8,
                                 .token_groups = static_cast<int>(tokens + 7) / 8,
                                 .chunks = 4,
                                 .token_tile = 128,
                                 .row_tile = rows,
                                 .row_tiles = tiles,
                                 .split = split},
                        .num_clusters = 1,
                        .waves = tiles};
    expect_exact(test, plan, tokens == 128 ? DType::kF32 : DType::kBF16);
    if (split == 1) expect_exact(test, plan, DType::kBF16, 8 + 8 - n % 8);
  }
}

TEST(Gemm, ExactAsPlanned) {
  GemmCase test({.shape = {.m = 120, .n = 261, .k = 300}, .one_token_scale = true});
  expect_exact(test, device_gemm().plan(test.spec().shape, Scaling::kOuter), DType::kBF16);
}

}  // namespace
}  // namespace quaver::testing
