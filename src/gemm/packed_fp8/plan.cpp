#include "gemm/packed_fp8/plan.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "gemm/packed_fp8/workspace.h"

namespace quaver::packed_fp8 {
namespace {

// Measured on an H200, in clocks of 1.97 GHz: they rank plans, no result depends on them.
constexpr double kHbmBytes = 2300.0;       // a clock, the whole device: 4.54 TB/s
constexpr double kL2Bytes = 4600.0;        // a clock, L2 to all SMs
constexpr double kExchangeBytes = 32.0;    // a clock, one CTA to the shared memory of others
constexpr double kExchangeLatency = 2500;  // of a tile: its parts end together, nothing is multiplied meanwhile
constexpr double kPartBytes = 32.0;        // a clock, one CTA to and from L2: parts of a tile
constexpr double kPartLatency = 2000;      // of a part: it is counted, written and counted again
constexpr double kPartsTogether = 3000;    // more where all parts of all tiles end at the same time

/// Clocks of one chunk of 128 rows that has arrived: barriers, issue, WGMMA against the copies in shared memory.
double chunk_clocks(const TileGrid& grid, Scaling scaling) {
  if (grid.row_tile > kBlockRows) return 200.0 + 4.0 * grid.row_tile;
  return 380.0 + 3.0 * grid.token_tile + (scaling == Scaling::kBlock ? 300.0 : 0.0) + (grid.pairs ? 80.0 : 0.0);
}

/// Clocks to scale, convert and store a tile while nobody multiplies.
double tile_end_clocks(int token_tile) {
  return 500.0 + 20.0 * token_tile;
}

struct Kind {
  int token_tile;
  int split;
  bool pairs;
  int row_tile = kBlockRows;
};

/// Clocks of the loop over `chunks` chunks of `rows` rows on each of `ctas` CTAs.
double loop_clocks(const GemmShape& shape, Scaling scaling, const TileGrid& grid, double ctas, double chunks) {
  const double rows = kGroupRows * static_cast<double>(grid.row_groups) / grid.row_tiles;
  const double loaded = kChunk * (rows + static_cast<double>(grid.token_tile) / grid.rows_per_cluster());
  const double work = chunks * std::max(ctas * loaded / kL2Bytes, chunk_clocks(grid, scaling));
  // Weights stream from HBM whatever the tiles are; CTAs with fewer rows leave their share of it to the others.
  const double stream = static_cast<double>(shape.n) * static_cast<double>(shape.k) / kHbmBytes;
  // The shorter of the two does not disappear behind the longer one.
  return std::max(stream, work) + std::min(stream, work) / 4;
}

TileGrid grid_of(const GemmShape& shape, const Kind& kind) {
  return {.row_groups = static_cast<int>(ceil_divide(shape.n, kGroupRows)),
          .token_groups = static_cast<int>(ceil_divide(shape.m, kGroupRows)),
          .chunks = static_cast<int>(num_chunks(shape.k)),
          .token_tile = kind.token_tile,
          .row_tile = kind.row_tile,
          .split = kind.split,
          .pairs = kind.pairs};
}

/// The tokens of a band stay in L2 (50 MB) while all weights pass; bands of even width.
int band_of(const GemmShape& shape, const TileGrid& grid) {
  constexpr int64_t kBandBytes = int64_t{17} << 20;
  const int64_t most = std::max<int64_t>(8, kBandBytes / (grid.token_tile * shape.k));
  const int64_t bands = ceil_divide(grid.token_tiles(), most);
  return static_cast<int>(ceil_divide(grid.token_tiles(), bands));
}

GemmPlan whole_tiles(const GemmShape& shape, Scaling scaling, int most_clusters, const Kind& kind, int row_granule) {
  GemmPlan plan{.grid = grid_of(shape, kind)};
  TileGrid& grid = plan.grid;
  const int per_cluster = grid.rows_per_cluster();
  const int64_t tokens = grid.token_tiles();
  const int64_t row_granules = grid.row_groups / row_granule;
  const int64_t least = ceil_divide(row_granules, int64_t{kind.row_tile / kGroupRows} / row_granule * per_cluster);
  // As many row tiles as fill the waves: fewer rows each, every CTA busy until the end.
  const int64_t waves = ceil_divide(least * tokens, most_clusters);
  const int64_t filling = std::max(least, waves * int64_t{most_clusters} / tokens);
  const int64_t steps = std::min(filling, ceil_divide(row_granules, per_cluster));
  grid.row_tiles = static_cast<int>(steps) * per_cluster;
  grid.band = band_of(shape, grid);
  plan.num_clusters = std::min(grid.num_tiles(), most_clusters);
  plan.waves = static_cast<int>(ceil_divide(grid.num_tiles(), plan.num_clusters));

  const double chunks = plan.waves * static_cast<double>(ceil_divide(grid.chunks, grid.split));
  double tile_end = tile_end_clocks(grid.token_tile);
  if (grid.split > 1) {
    const double sent = 4.0 * grid.row_tile * grid.token_tile * (grid.split - 1) / grid.split;
    tile_end += kExchangeLatency + sent / kExchangeBytes;
  }
  const double ctas = static_cast<double>(plan.num_clusters) * grid.cluster();
  plan.clocks = loop_clocks(shape, scaling, grid, ctas, chunks) + plan.waves * tile_end;
  return plan;
}

/// Row tiles as high as can be, their chunks in `ranges` ranges for each token tile.
GemmPlan in_ranges(const GemmShape& shape, Scaling scaling, int ranges, int token_tile) {
  GemmPlan plan{.grid = grid_of(shape, {token_tile, 1, false})};
  TileGrid& grid = plan.grid;
  grid.row_tiles = static_cast<int>(ceil_divide(grid.row_groups, kBlockGroups));
  grid.ranges = ranges;
  plan.num_clusters = ranges * grid.token_tiles();
  const double chunks = std::ceil(static_cast<double>(grid.row_tiles) * grid.chunks / ranges);
  const double part_clocks = 4.0 * kBlockRows * token_tile / kPartBytes;
  const double parts = std::max(1.0, grid.chunks / chunks);
  double ends = tile_end_clocks(token_tile);
  if (ranges != grid.row_tiles) ends += kPartLatency + parts * part_clocks;  // else each range is a whole tile
  if (ranges % grid.row_tiles != 0) {  // the end of a tile, whole tiles, the beginning of another one
    ends += chunks / grid.chunks * tile_end_clocks(token_tile) + kPartLatency + 2 * part_clocks;
  } else if (ranges > grid.row_tiles) {
    ends += kPartsTogether;
  }
  plan.clocks = loop_clocks(shape, scaling, grid, plan.num_clusters, chunks) + ends;
  return plan;
}

}  // namespace

std::vector<GemmPlan> possible_plans(const GemmShape& shape, Scaling scaling, const MaxClusters& max_clusters,
                                     Output output, SumOrder order) {
  constexpr int64_t kLimit = int64_t{1} << 22;
  check(shape.m >= 1 && shape.m <= kLimit, "tokens ", shape.m, ": expected 1 to ", kLimit);
  check(shape.n >= 1 && shape.n <= kLimit, "out features ", shape.n, ": expected 1 to ", kLimit);
  check(shape.k >= 1 && shape.k <= kLimit, "in features ", shape.k, ": expected 1 to ", kLimit);
  check(output == Output::kRows || shape.n % 16 == 0, "out features ", shape.n,
        ": expected a multiple of 16, rows of gate and up in turn");
  check(max_clusters[1] > 0, "CTAs that fit the device ", max_clusters[1], ": expected at least 1");

  // The smallest that holds all tokens, or one of the largest two. Without block scales smaller ones promote their sums
  // more often.
  const int64_t held = order == SumOrder::kFixed && scaling == Scaling::kOuter ? 128 : shape.m;
  int token_tile = kTokenTiles.front();
  for (const int tile : kTokenTiles) token_tile = token_tile < held && tile <= 128 ? tile : token_tile;
  std::vector<GemmPlan> plans;
  const auto consider = [&](const Kind& kind) {
    const int cluster = kind.split * (kind.pairs ? 2 : 1);
    const int most = max_clusters.at(static_cast<size_t>(cluster));
    if (most < 1 || num_chunks(shape.k) < kind.split) return;
    plans.push_back(whole_tiles(shape, scaling, most, kind, row_granule(output)));
  };
  // With few tokens, what pairs save of L2's bandwidth they lose by waiting for each other.
  const bool pairs = shape.m > 128 && max_clusters[2] > 0;
  const int most_parts = order == SumOrder::kFixed ? 1 : kMaxCluster;
  for (int split = 1; split <= most_parts && split * (pairs ? 2 : 1) <= kMaxCluster; ++split) {
    consider({token_tile, split, pairs});
  }
  if (shape.m > 128 && scaling == Scaling::kOuter) consider({kTokenTiles.back(), 1, pairs});

  if (token_tile == kHighTileTokens && shape.m <= kHighTileTokens && scaling == Scaling::kOuter) {
    for (int split = 1; output == Output::kRows && split <= most_parts; ++split) {
      consider({kHighTileTokens, split, false, kHighTiles.front()});
    }
    consider({kHighTileTokens, 1, false, kHighTiles.back()});
  }
  if (order == SumOrder::kFixed) return plans;  // ranges cut tiles over their chunks

  const int64_t row_tiles = ceil_divide(shape.n, kBlockRows);
  const int64_t token_tiles = ceil_divide(shape.m, token_tile);
  const int64_t most = token_tiles <= 2 ? std::min(max_clusters[1], kMaxRanges) / token_tiles : 0;
  for (const int64_t ranges : {most, row_tiles < most ? most / row_tiles * row_tiles : 0}) {
    if (ranges < 1 || ranges > row_tiles * num_chunks(shape.k)) continue;
    if (ranges == row_tiles && token_tiles == 1) continue;  // whole tiles, as above
    plans.push_back(in_ranges(shape, scaling, static_cast<int>(ranges), token_tile));
  }
  return plans;
}

GemmPlan plan_gemm(const GemmShape& shape, Scaling scaling, const MaxClusters& max_clusters, Output output,
                   SumOrder order) {
  const std::vector<GemmPlan> plans = possible_plans(shape, scaling, max_clusters, output, order);
  return *std::ranges::min_element(plans, {}, &GemmPlan::clocks);
}

std::string to_string(const GemmPlan& plan) {
  const TileGrid& grid = plan.grid;
  const int64_t rows = kGroupRows * ceil_divide(grid.row_groups, grid.row_tiles);
  if (grid.ranges > 0) {
    return concat("tile ", rows, "x", grid.token_tile, ", ", plan.num_clusters, " ranges of ",
                  ceil_divide(int64_t{grid.row_tiles} * grid.chunks, grid.ranges), " chunks");
  }
  return concat(grid.row_tile > kBlockRows ? "high tile " : "tile ", rows, "x", grid.token_tile,
                grid.pairs ? ", pairs" : "", ", K in ", grid.split, ", ", grid.num_tiles(), " tiles on ",
                plan.num_clusters, " clusters (", plan.waves, plan.waves == 1 ? " wave)" : " waves)");
}

}  // namespace quaver::packed_fp8
