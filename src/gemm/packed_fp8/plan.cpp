#include "gemm/packed_fp8/plan.h"

#include <algorithm>

#include "core/check.h"

namespace quaver::packed_fp8 {
namespace {

// Measured on an H200, in clocks of 1.97 GHz: they rank plans, no result depends on them.
constexpr double kHbmBytes = 2300.0;       // a clock, the whole device: 4.54 TB/s
constexpr double kL2Bytes = 4600.0;        // a clock, L2 to all SMs
constexpr double kExchangeBytes = 32.0;    // a clock, one CTA to the shared memory of others
constexpr double kExchangeLatency = 4000;  // of a tile: its parts end together, nothing is multiplied meanwhile
constexpr double kTileEnd = 2000;          // scale, convert and store a tile while nobody multiplies

/// Clocks of one chunk of 128 rows that has arrived: barriers, issue, WGMMA against the copies in shared memory.
double chunk_clocks(int token_tile, Scaling scaling) {
  return 480.0 + 2.6 * token_tile + (scaling == Scaling::kBlock ? 300.0 : 0.0);
}

struct Candidate {
  int token_tile;
  int split;
  bool pairs;
};

struct Judged {
  GemmPlan plan{};
  double clocks = 0.0;
};

Judged judge(const GemmShape& shape, Scaling scaling, int most_clusters, const Candidate& candidate) {
  GemmPlan plan;
  TileGrid& grid = plan.grid;
  grid = {.row_groups = static_cast<int>(ceil_divide(shape.n, kGroupRows)),
          .token_groups = static_cast<int>(ceil_divide(shape.m, kGroupRows)),
          .chunks = static_cast<int>(num_chunks(shape.k)),
          .token_tile = candidate.token_tile,
          .split = candidate.split,
          .pairs = candidate.pairs};
  const int per_cluster = grid.rows_per_cluster();
  const int64_t tokens = grid.token_tiles();
  const int64_t least = ceil_divide(grid.row_groups, int64_t{kBlockGroups} * per_cluster);
  // As many row tiles as fill the waves: fewer rows each, every CTA busy until the end.
  const int64_t waves = ceil_divide(least * tokens, most_clusters);
  const int64_t filling = std::max(least, waves * int64_t{most_clusters} / tokens);
  const int64_t steps = std::min(filling, ceil_divide(grid.row_groups, per_cluster));
  grid.row_tiles = static_cast<int>(steps) * per_cluster;
  plan.num_clusters = std::min(grid.num_tiles(), most_clusters);
  plan.waves = static_cast<int>(ceil_divide(grid.num_tiles(), plan.num_clusters));

  const double ctas = static_cast<double>(plan.num_clusters) * grid.cluster();
  const double rows = kGroupRows * static_cast<double>(grid.row_groups) / grid.row_tiles;
  const double tile_tokens = candidate.token_tile;
  const double loaded = kChunk * (rows + tile_tokens / per_cluster);
  const double chunk = std::max(ctas * loaded / kL2Bytes, chunk_clocks(candidate.token_tile, scaling));
  const double chunks = plan.waves * static_cast<double>(ceil_divide(grid.chunks, grid.split));
  double tile_end = tokens > 1 ? kTileEnd : 0.0;
  if (grid.split > 1) {
    const double sent = 4.0 * kBlockRows * tile_tokens * (grid.split - 1) / grid.split;
    tile_end += kExchangeLatency + sent / kExchangeBytes;
  }
  // Weights stream from HBM whatever the tiles are; CTAs with fewer rows leave their share of it to the others.
  const double stream = static_cast<double>(shape.n) * static_cast<double>(shape.k) / kHbmBytes;
  const double work = chunks * chunk;
  // The shorter of the two does not disappear behind the longer one.
  return {.plan = plan, .clocks = std::max(stream, work) + std::min(stream, work) / 4 + plan.waves * tile_end};
}

}  // namespace

GemmPlan plan_gemm(const GemmShape& shape, Scaling scaling, const MaxClusters& max_clusters) {
  constexpr int64_t kLimit = int64_t{1} << 22;
  check(shape.m >= 1 && shape.m <= kLimit, "tokens ", shape.m, ": expected 1 to ", kLimit);
  check(shape.n >= 1 && shape.n <= kLimit, "out features ", shape.n, ": expected 1 to ", kLimit);
  check(shape.k >= 1 && shape.k <= kLimit, "in features ", shape.k, ": expected 1 to ", kLimit);
  check(max_clusters[1] > 0, "CTAs that fit the device ", max_clusters[1], ": expected at least 1");

  int token_tile = kTokenTiles.front();  // the smallest that holds all tokens, or one of the largest two
  for (const int tile : kTokenTiles) token_tile = token_tile < shape.m && tile <= 128 ? tile : token_tile;
  Judged best;
  const auto consider = [&](const Candidate& candidate) {
    const int cluster = candidate.split * (candidate.pairs ? 2 : 1);
    const int most = max_clusters.at(static_cast<size_t>(cluster));
    if (most < 1 || num_chunks(shape.k) < candidate.split) return;
    const Judged judged = judge(shape, scaling, most, candidate);
    if (best.plan.num_clusters == 0 || judged.clocks < best.clocks) best = judged;
  };
  // With few tokens, what pairs save of L2's bandwidth they lose by waiting for each other.
  const bool pairs = shape.m > 128 && max_clusters[2] > 0;
  for (int split = 1; split * (pairs ? 2 : 1) <= kMaxCluster; ++split) consider({token_tile, split, pairs});
  if (shape.m > 128 && scaling == Scaling::kOuter) consider({kTokenTiles.back(), 1, pairs});
  return best.plan;
}

std::string to_string(const GemmPlan& plan) {
  const TileGrid& grid = plan.grid;
  const int64_t rows = kGroupRows * ceil_divide(grid.row_groups, grid.row_tiles);
  return concat("tile ", rows, "x", grid.token_tile, grid.pairs ? ", pairs" : "", ", K in ", grid.split, ", ",
                grid.num_tiles(), " tiles on ", plan.num_clusters, " clusters (", plan.waves,
                plan.waves == 1 ? " wave)" : " waves)");
}

}  // namespace quaver::packed_fp8
