#include "gemm/packed_fp8/plan.h"

#include <algorithm>
#include <initializer_list>

#include "core/check.h"

namespace quaver::packed_fp8 {
namespace {

// Rates of an H200, in bytes a clock at 1.97 GHz: they rank plans, no result depends on them.
constexpr double kHbmBytes = 2300.0;       // the whole device: 4.54 TB/s
constexpr double kL2BytesPerCta = 40.0;    // L2 to one SM while all of them read
constexpr double kExchangeBytes = 32.0;    // one CTA to the shared memory of others
constexpr double kExchangeLatency = 1500;  // barriers and the reading CTA's turn
constexpr double kTileEnd = 1500;          // scale, convert and store a tile of prefill

/// Clocks of one chunk of 128 rows: WGMMA, and what a short chain of them leaves uncovered (barrier, promotion).
double mma_clocks(int token_tile, bool share_tokens, Scaling scaling) {
  const double overhead = share_tokens ? 40.0 : 200.0;
  return 4.0 * token_tile + (scaling == Scaling::kBlock ? 300.0 : overhead);
}

struct Candidate {
  int token_tile;
  int split;
  bool share_tokens;
};

struct Judged {
  GemmPlan plan{};
  double clocks = 0.0;
};

Judged judge(const GemmShape& shape, Scaling scaling, const MaxClusters& max_clusters, const Candidate& candidate) {
  GemmPlan plan;
  plan.share_tokens = candidate.share_tokens;
  plan.cluster = candidate.share_tokens ? 2 : candidate.split;
  const int most = max_clusters.at(static_cast<size_t>(plan.cluster));
  TileGrid& grid = plan.grid;
  grid = {.row_groups = static_cast<int>(ceil_divide(shape.n, kGroupRows)),
          .token_groups = static_cast<int>(ceil_divide(shape.m, kGroupRows)),
          .chunks = static_cast<int>(num_chunks(shape.k)),
          .token_tile = candidate.token_tile,
          .row_tiles_per_cluster = candidate.share_tokens ? 2 : 1,
          .split = candidate.split};
  const auto tokens = int64_t{grid.token_tiles()};
  const int64_t least = ceil_divide(grid.row_groups, int64_t{kBlockGroups} * grid.row_tiles_per_cluster);
  plan.waves = static_cast<int>(ceil_divide(least * tokens, most));
  // As many row tiles as fill the waves: fewer rows each, every CTA busy until the end.
  const int64_t filling = std::max(least, plan.waves * int64_t{most} / tokens);
  const int64_t steps = std::min(filling, ceil_divide(grid.row_groups, grid.row_tiles_per_cluster));
  grid.row_tiles = static_cast<int>(steps) * grid.row_tiles_per_cluster;
  plan.num_clusters = static_cast<int>(std::min<int64_t>(grid.num_tiles(), most));
  plan.waves = static_cast<int>(ceil_divide(grid.num_tiles(), plan.num_clusters));

  const double rows = kGroupRows * static_cast<double>(ceil_divide(grid.row_groups, grid.row_tiles));
  const double tile_tokens = static_cast<double>(candidate.token_tile);
  const double chunks = static_cast<double>(ceil_divide(grid.chunks, grid.split));
  const double loaded = kChunk * (rows + tile_tokens / grid.row_tiles_per_cluster);
  const double chunk =
      std::max(loaded / kL2BytesPerCta, mma_clocks(candidate.token_tile, candidate.share_tokens, scaling));
  double tile_end = tokens > 1 ? kTileEnd : 0.0;
  if (grid.split > 1) {
    const double sent = 4.0 * kBlockRows * tile_tokens * (grid.split - 1) / grid.split;
    tile_end += kExchangeLatency + sent / kExchangeBytes;
  }
  // Weights stream from HBM whatever the tiles are; CTAs with fewer rows leave their share of it to the others.
  const double stream = static_cast<double>(shape.n) * static_cast<double>(shape.k) / kHbmBytes;
  return {.plan = plan, .clocks = std::max(stream, plan.waves * chunks * chunk) + plan.waves * tile_end};
}

}  // namespace

GemmPlan plan_gemm(const GemmShape& shape, Scaling scaling, const MaxClusters& max_clusters) {
  constexpr int64_t kLimit = int64_t{1} << 22;
  check(shape.m >= 1 && shape.m <= kLimit, "tokens ", shape.m, ": expected 1 to ", kLimit);
  check(shape.n >= 1 && shape.n <= kLimit, "out features ", shape.n, ": expected 1 to ", kLimit);
  check(shape.k >= 1 && shape.k <= kLimit, "in features ", shape.k, ": expected 1 to ", kLimit);
  check(max_clusters[1] > 0, "CTAs that fit the device ", max_clusters[1], ": expected at least 1");

  Judged best;
  const auto consider = [&](const Candidate& candidate) {
    const int cluster = candidate.share_tokens ? 2 : candidate.split;
    if (max_clusters.at(static_cast<size_t>(cluster)) < 1 || num_chunks(shape.k) < candidate.split) return;
    const Judged judged = judge(shape, scaling, max_clusters, candidate);
    if (best.plan.num_clusters == 0 || judged.clocks < best.clocks) best = judged;
  };
  int small = 8;  // the smallest tile that holds all tokens, 128 at most
  while (small < 128 && small < shape.m) small *= 2;
  for (int split = 1; split <= kMaxSplit; ++split) consider({small, split, false});
  if (shape.m > 128) {
    consider({128, 1, true});
    if (scaling == Scaling::kOuter) consider({192, 1, true});
  }
  return best.plan;
}

std::string to_string(const GemmPlan& plan) {
  const TileGrid& grid = plan.grid;
  const int64_t rows = kGroupRows * ceil_divide(grid.row_groups, grid.row_tiles);
  return concat("tile ", rows, "x", grid.token_tile, ", K in ", grid.split, ", ", grid.num_tiles(), " tiles on ",
                plan.num_clusters, " clusters of ", plan.cluster, plan.share_tokens ? " sharing tokens" : "", " (",
                plan.waves, plan.waves == 1 ? " wave)" : " waves)");
}

}  // namespace quaver::packed_fp8
