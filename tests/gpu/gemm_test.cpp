// The packed FP8 GEMM against float64 on the same codes.
#include <gtest/gtest.h>

#include <set>

#include "gemm_case.h"
#include "testing/expect_error.h"
#include "testing/metric.h"

namespace quaver::testing {
namespace {

using packed_fp8::GemmPlan;
using packed_fp8::GemmShape;
using packed_fp8::MaxClusters;
using packed_fp8::Scaling;

constexpr MaxClusters kSmallDevice{0, 5, 3, 2, 1};  // makes every CTA take several tiles
constexpr MaxClusters kNoClusters{0, 7, 0, 0, 0};

/// Integer data: every output equals the reference exactly.
void expect_exact(GemmCase& test, const GemmPlan& plan, int64_t padding = 0) {
  SCOPED_TRACE(concat("m ", test.spec().shape.m, ", n ", test.spec().shape.n, ", k ", test.spec().shape.k, ": ",
                      to_string(plan)));
  const std::vector<double> expected = test.expected();
  const GemmOutput wide = test.run(plan, DType::kF32, nullptr, padding);
  const GemmOutput narrow = test.run(plan, DType::kBF16, nullptr, padding);
  int64_t wrong = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto exact = static_cast<float>(expected[i]);
    const bool right = wide.values[i] == exact && narrow.values[i] == to_float(to_bf16(exact));
    if (!right && ++wrong <= 3) {
      const auto n = static_cast<size_t>(test.spec().shape.n);
      ADD_FAILURE() << "token " << i / n << ", row " << i % n << ": " << wide.values[i] << " and " << narrow.values[i]
                    << ", expected " << exact;
    }
  }
  EXPECT_EQ(wrong, 0);
}

TEST(PackedGemm, ExactOnIntegersAtAnyShape) {
  std::set<std::pair<int, int>> plans;  // (CTAs a cluster, token tile)
  for (const Scaling scaling : {Scaling::kOuter, Scaling::kBlock}) {
    for (const int64_t m : {1, 2, 3, 7, 8, 9, 17, 33, 64, 77, 128, 129, 200, 256, 500}) {
      for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 1}, {61, 100}, {136, 384}, {1000, 1111}, {509, 2048}}) {
        GemmCase test({.shape = {.m = m, .n = n, .k = k}, .scaling = scaling, .seed = static_cast<uint64_t>(m)});
        const GemmPlan plan = device_gemm().plan(test.spec().shape, scaling);
        plans.emplace(plan.grid.cluster(), plan.grid.token_tile);
        expect_exact(test, plan);
      }
    }
  }
  EXPECT_GE(plans.size(), 10U);  // the shapes reach most kernels
}

TEST(PackedGemm, EveryClusterAndSeveralTilesACta) {
  std::set<std::tuple<int, bool, int>> reached;  // (parts of K, pairs, token tile) with several tiles a CTA
  for (const Scaling scaling : {Scaling::kOuter, Scaling::kBlock}) {
    for (const int64_t m : {5, 13, 29, 64, 120, 300}) {
      for (const int64_t n : {200, 1003}) {
        GemmCase test({.shape = {.m = m, .n = n, .k = 900}, .scaling = scaling, .seed = static_cast<uint64_t>(n)});
        const GemmPlan some = device_gemm().plan(test.spec().shape, scaling);
        for (const bool pairs : {false, true}) {
          for (int split = 1; split * (pairs ? 2 : 1) <= packed_fp8::kMaxCluster; ++split) {
            for (const int clusters : {1, 3, 40}) {
              GemmPlan plan = some;
              packed_fp8::TileGrid& grid = plan.grid;
              grid.token_tile =
                  m <= 128 || split > 1 || scaling == Scaling::kBlock ? std::min(grid.token_tile, 128) : 192;
              grid.row_tile = packed_fp8::kBlockRows;
              grid.split = split;
              grid.pairs = pairs;
              grid.row_tiles = (grid.row_groups + 14) / 15;  // 120 rows at most
              grid.row_tiles += pairs ? grid.row_tiles % 2 : 0;
              plan.num_clusters = std::min(clusters, grid.num_tiles());
              if (grid.num_tiles() > plan.num_clusters) reached.emplace(split, pairs, grid.token_tile);
              expect_exact(test, plan);
            }
          }
        }
      }
    }
  }
  for (const int tile : {8, 16, 32, 64, 128}) {
    for (const int split : {1, 2, 3, 4}) EXPECT_TRUE(reached.contains({split, false, tile})) << split << " " << tile;
    for (const int split : {1, 2}) EXPECT_TRUE(reached.contains({split, true, tile})) << split << " pairs " << tile;
  }
  EXPECT_TRUE(reached.contains({1, true, 192}));
}

// Tokens as the 64-row operand of the WGMMA.
TEST(PackedGemm, EveryHighTile) {
  for (const int rows : packed_fp8::kHighTiles) {
    for (const int64_t m : {3, 64, 65, 77, 120, 128}) {
      for (const int64_t n : {40, 1003, 1504}) {
        GemmCase test({.shape = {.m = m, .n = n, .k = 900}, .seed = static_cast<uint64_t>(n)});
        for (int split = 1; split <= (rows == packed_fp8::kHighTiles.front() ? packed_fp8::kMaxCluster : 1); ++split) {
          for (const int clusters : {1, 3, 40}) {
            GemmPlan plan = device_gemm().plan(test.spec().shape, Scaling::kOuter);
            packed_fp8::TileGrid& grid = plan.grid;
            grid.token_tile = packed_fp8::kHighTileTokens;
            grid.row_tile = rows;
            grid.row_tiles = (8 * grid.row_groups + rows - 1) / rows;
            grid.split = split;
            grid.pairs = false;
            grid.ranges = 0;
            plan.num_clusters = std::min(clusters, grid.num_tiles());
            expect_exact(test, plan);
            expect_exact(test, plan, 8 + (8 - n % 8) % 8);
          }
        }
      }
    }
  }
}

TEST(PackedGemm, EveryRange) {
  std::set<std::pair<bool, int>> reached;  // (all parts end together, token tile) with parts
  for (const Scaling scaling : {Scaling::kOuter, Scaling::kBlock}) {
    for (const int64_t m : {5, 13, 29, 64, 120, 250}) {
      GemmCase test({.shape = {.m = m, .n = 1003, .k = 1500}, .scaling = scaling, .seed = static_cast<uint64_t>(m)});
      for (const int ranges : {1, 5, 13, 16, 40}) {
        GemmPlan plan = device_gemm().plan(test.spec().shape, scaling);
        packed_fp8::TileGrid& grid = plan.grid;
        grid.token_tile = std::min(grid.token_tile, 128);
        grid.row_tile = packed_fp8::kBlockRows;
        grid.split = 1;
        grid.pairs = false;
        grid.row_tiles = 8;
        grid.ranges = ranges;
        plan.num_clusters = ranges * grid.token_tiles();
        if (ranges > 8) reached.emplace(ranges % 8 == 0, grid.token_tile);
        expect_exact(test, plan);
        EXPECT_TRUE(device_counters_are_zero());
      }
    }
  }
  EXPECT_EQ(reached.size(), 10U);  // both kinds with each of five token tiles
}

/// Up to five parts a tile on data that rounds: who reports last differs from run to run, the bits must not.
TEST(PackedGemm, RangesRepeat) {
  for (const int ranges : {126, 132, 24, 40}) {
    GemmCase test({.shape = {.m = 128, .n = ranges > 100 ? 5376 : 1003, .k = 8192}, .data = GemmData::kNormal});
    GemmPlan plan = packed_fp8::plan_gemm(test.spec().shape, Scaling::kOuter, kNoClusters);
    plan.grid.row_tile = packed_fp8::kBlockRows;
    plan.grid.row_tiles = static_cast<int>((test.spec().shape.n + 127) / 128);
    plan.grid.split = 1;
    plan.grid.ranges = ranges;
    plan.num_clusters = ranges;
    SCOPED_TRACE(to_string(plan));
    const std::vector<uint32_t> expected = test.run(plan, DType::kF32, nullptr).bits;
    for (int repeat = 0; repeat < 20; ++repeat) {
      ASSERT_TRUE(expected == test.run(plan, DType::kF32, nullptr).bits) << "repeat " << repeat;
    }
    EXPECT_TRUE(device_counters_are_zero());
  }
}

TEST(PackedGemm, OneScaleForAllTokens) {
  for (const int64_t m : {3, 130}) {
    GemmCase test({.shape = {.m = m, .n = 100, .k = 256}, .one_token_scale = true});
    expect_exact(test, device_gemm().plan(test.spec().shape, Scaling::kOuter));
  }
}

TEST(PackedGemm, RowsOfTheOutputMayBeApart) {
  for (const int64_t padding : {1, 8}) {  // 2-byte and 16-byte stores
    for (const int64_t n : {61, 128, 200}) {
      GemmCase test({.shape = {.m = 70, .n = n, .k = 300}});
      expect_exact(test, device_gemm().plan(test.spec().shape, Scaling::kOuter), padding);
    }
  }
}

TEST(PackedGemm, SlabsPackIntoTheirRows) {
  GemmCase test({.shape = {.m = 4, .n = 300, .k = 200}});
  const GemmPlan plan = device_gemm().plan(test.spec().shape, Scaling::kOuter);
  const GemmOutput whole = test.run(plan, DType::kF32, nullptr);
  std::vector<uint8_t> codes(300 * 200);
  for (int64_t row = 0; row < 300; ++row) {
    for (int64_t column = 0; column < 200; ++column) {
      codes[static_cast<size_t>(row * 200 + column)] = static_cast<uint8_t>((row * 31 + column * 7) % 0x7E);
    }
  }
  const auto source = to_device(codes);
  const DeviceBuffer<uint8_t> packed(packed_fp8::packed_bytes(300, 200));
  for (const auto& [begin, end] : {std::pair{0, 13}, {13, 130}, {130, 300}}) {
    packed_fp8::pack_rows({.source = source.data() + begin * 200,
                           .row_stride = 200,
                           .rows = end - begin,
                           .columns = 200,
                           .packed = packed.data(),
                           .first_row = begin},
                          nullptr);
  }
  const std::vector<uint8_t> written = to_host(packed);
  for (int64_t row = 0; row < 300; ++row) {
    for (int64_t column = 0; column < 256; ++column) {
      const uint8_t expected = column < 200 ? codes[static_cast<size_t>(row * 200 + column)] : uint8_t{0};
      ASSERT_EQ(written[static_cast<size_t>(packed_fp8::packed_offset(row, column, 200))], expected)
          << row << " " << column;
    }
  }
  EXPECT_EQ(whole.values.size(), 1200U);
}

/// A NaN code reaches the outputs of its own token or row and no others.
TEST(PackedGemm, NanStaysInItsTokenAndRow) {
  for (const int64_t m : {21, 150}) {
    for (const MaxClusters& device : {kSmallDevice, kNoClusters}) {
      GemmCase test({.shape = {.m = m, .n = 203, .k = 515}});
      const GemmPlan plan = packed_fp8::plan_gemm(test.spec().shape, Scaling::kOuter, device);
      const std::vector<float> clean = test.run(plan, DType::kF32, nullptr).values;
      test.set_token(7, 514, 0x7F);
      test.set_weight(101, 3, 0xFF);
      const std::vector<float> values = test.run(plan, DType::kF32, nullptr).values;
      for (int64_t i = 0; i < m * 203; ++i) {
        const bool poisoned = i / 203 == 7 || i % 203 == 101;
        const float value = values[static_cast<size_t>(i)];
        ASSERT_TRUE(poisoned ? std::isnan(value) : value == clean[static_cast<size_t>(i)]) << i / 203 << " " << i % 203;
      }
    }
  }
}

/// What stays in the tensor core's 13-bit accumulator: K = 512 (3.3e-4), 1,024 from 128 tokens a tile on (5.3e-4), 128
/// with block scales (1.3e-4). BF16 rounding adds 1.66e-3.
void expect_close(GemmCase& test, const GemmPlan& plan) {
  SCOPED_TRACE(concat("m ", test.spec().shape.m, ", n ", test.spec().shape.n, ", k ", test.spec().shape.k, ": ",
                      to_string(plan)));
  const auto [m, n, k] = test.spec().shape;
  std::vector<int64_t> rows;  // both ends of every kind of tile, and some in between
  for (int64_t row = 0; row < n; row += row < 300 || row + 300 > n ? 1 : 997) rows.push_back(row);
  const std::vector<double> expected = test.expected(rows);
  const auto chosen = [&](const GemmOutput& output) {
    std::vector<float> values;
    for (int64_t token = 0; token < m; ++token) {
      for (const int64_t row : rows) values.push_back(output.values[static_cast<size_t>(token * n + row)]);
    }
    return values;
  };
  const auto row = std::ssize(rows);
  const std::vector<float> wide = chosen(test.run(plan, DType::kF32, nullptr));
  const std::vector<float> narrow = chosen(test.run(plan, DType::kBF16, nullptr));
  const bool blocks = test.spec().scaling == Scaling::kBlock;
  const double error = blocks ? 2e-4 : plan.grid.token_tile < 128 ? 4e-4 : 6e-4;
  EXPECT_TRUE(close_to<float>(wide, expected, row, {.relative_l2 = error, .worst_row = 2 * error, .gain = error}));
  EXPECT_TRUE(close_to<float>(narrow, expected, row, {.relative_l2 = 1.9e-3, .worst_row = 2.6e-3, .gain = error}));
}

TEST(PackedGemm, ShapesOfGemma4AgainstFloat64) {
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{43008, 5376},
                             {5376, 21504},
                             {16384, 5376},
                             {5376, 8192},
                             {18432, 5376},
                             {5376, 16384}}) {
    for (const int64_t m : {1, 128, 200}) {
      GemmCase test({.shape = {.m = m, .n = n, .k = k}, .data = GemmData::kNormal});
      expect_close(test, device_gemm().plan(test.spec().shape, Scaling::kOuter));
    }
  }
}

TEST(PackedGemm, BlockScalesAgainstFloat64) {
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{5376, 8192}, {2056, 5376}}) {
    for (const int64_t m : {1, 77, 128, 260}) {
      GemmCase test({.shape = {.m = m, .n = n, .k = k}, .scaling = Scaling::kBlock, .data = GemmData::kNormal});
      expect_close(test, device_gemm().plan(test.spec().shape, Scaling::kBlock));
    }
  }
}

TEST(PackedGemm, RefusesByName) {
  GemmCase test({.shape = {.m = 4, .n = 16, .k = 32}});
  DeviceBuffer<float> out(64);
  const Device gpu{.kind = Device::Kind::kCuda, .index = 0};
  const TensorView good(out.data(), DType::kF32, {4, 16}, gpu);
  const auto run = [](packed_fp8::PackedWeight weight, packed_fp8::PackedTokens tokens, TensorView view) {
    return [=] { device_gemm().run(weight, tokens, view, device_workspace(), nullptr); };
  };
  packed_fp8::PackedTokens misaligned = test.tokens();
  misaligned.packed += 8;
  expect_error(run(test.weight(), misaligned, good), ErrorKind::kInvalidArgument, {"tokens", "16-byte"});
  packed_fp8::PackedTokens strided = test.tokens();
  strided.scale_stride = 3;
  expect_error(run(test.weight(), strided, good), ErrorKind::kInvalidArgument, {"token scale stride 3"});
  packed_fp8::PackedWeight bare = test.weight();
  bare.scales = nullptr;
  expect_error(run(bare, test.tokens(), good), ErrorKind::kInvalidArgument, {"weight", "scales"});
  const TensorView wide(out.data(), DType::kF32, {3, 16}, gpu);
  expect_error(run(test.weight(), test.tokens(), wide), ErrorKind::kInvalidArgument, {"out", "[4, 16]"});
  const TensorView codes(out.data(), DType::kE4M3, {4, 16}, gpu);
  expect_error(run(test.weight(), test.tokens(), codes), ErrorKind::kInvalidArgument, {"out dtype"});
}

}  // namespace
}  // namespace quaver::testing
