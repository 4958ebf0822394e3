// Which part of the product a CTA computes. Pure arithmetic, the same on the host (plan, tests) and in the kernel.
//
// A tile is up to `row_tile` weight rows (whole groups of 8, spread evenly over the row tiles) times up to `token_tile`
// tokens. Clusters take tiles cluster, cluster + num_clusters, …. The CTAs of a cluster take parts of K (`split`), and
// in pairs neighbouring row tiles of the same tokens (`pairs`): rank = 2 * part + row with pairs, rank = part without.
//
// With `ranges` there are no clusters: the chunks of all row tiles, one after another, are cut into that many even
// ranges for each token tile, one a CTA. A row tile whose chunks lie in several ranges has as many parts
// (partial_sums.cuh). CTA = range * token tiles + token tile: those that read the same weights do it at the same time.
#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "gemm/packed_fp8/layout.h"

namespace quaver::packed_fp8 {

struct TileGrid {
  int row_groups = 0;         ///< ceil(N / 8)
  int token_groups = 0;       ///< ceil(M / 8)
  int chunks = 0;             ///< ceil(K / 128)
  int token_tile = 0;         ///< tokens of a tile
  int row_tile = kBlockRows;  ///< most rows of a tile
  int row_tiles = 0;          ///< even with pairs
  int split = 1;              ///< parts of K
  bool pairs = false;         ///< two CTAs load the tokens that they share once
  int ranges = 0;             ///< for each token tile; 0: CTAs take whole tiles
  int band = 1;  ///< token tiles that run side by side on the same rows: a weight is read from HBM once for all

  [[nodiscard]] QUAVER_HD constexpr int token_tiles() const {
    return (token_groups * kGroupRows + token_tile - 1) / token_tile;
  }
  [[nodiscard]] QUAVER_HD constexpr int rows_per_cluster() const { return pairs ? 2 : 1; }      ///< in row tiles
  [[nodiscard]] QUAVER_HD constexpr int cluster() const { return split * rows_per_cluster(); }  ///< in CTAs
  [[nodiscard]] QUAVER_HD constexpr int row_of(int rank) const { return pairs ? rank & 1 : 0; }
  [[nodiscard]] QUAVER_HD constexpr int part_of(int rank) const { return pairs ? rank >> 1 : rank; }
  [[nodiscard]] QUAVER_HD constexpr int rank_of(int row, int part) const { return pairs ? 2 * part + row : part; }
  /// Tiles that clusters take.
  [[nodiscard]] QUAVER_HD constexpr int num_tiles() const { return row_tiles / rows_per_cluster() * token_tiles(); }
};

/// Groups of 8 rows and of 8 tokens, and chunks of K: half-open.
struct Tile {
  int row_begin = 0, row_end = 0;
  int token_begin = 0, token_end = 0;
  int chunk_begin = 0, chunk_end = 0;
};

/// Part `index` of `count` items cut into `parts` ranges, the first `count % parts` of them one item longer, begins
/// here.
[[nodiscard]] QUAVER_HD constexpr int even_begin(int index, int parts, int count) {
  const int longer = count % parts;
  return index * (count / parts) + (index < longer ? index : longer);
}

/// A tile with all of K. Row tiles begin at multiples of `row_granule` groups, of which there is a whole number.
[[nodiscard]] QUAVER_HD constexpr Tile tile_of(const TileGrid& grid, int row_tile, int token_tile,
                                               int row_granule = 1) {
  const int tile_groups = grid.token_tile / kGroupRows;
  const int token_end = (token_tile + 1) * tile_groups;
  const int granules = grid.row_groups / row_granule;
  return {.row_begin = row_granule * even_begin(row_tile, grid.row_tiles, granules),
          .row_end = row_granule * even_begin(row_tile + 1, grid.row_tiles, granules),
          .token_begin = token_tile * tile_groups,
          .token_end = token_end < grid.token_groups ? token_end : grid.token_groups,
          .chunk_begin = 0,
          .chunk_end = grid.chunks};
}

/// The tile with number `index` (0 … num_tiles() - 1) as CTA `rank` of its cluster computes it.
[[nodiscard]] QUAVER_HD constexpr Tile tile_at(const TileGrid& grid, int index, int rank, int row_granule = 1) {
  const int token_tiles = grid.token_tiles();
  const int row_steps = grid.row_tiles / grid.rows_per_cluster();
  const int first = index / (grid.band * row_steps) * grid.band;  // token tile of the band
  const int in_band = index - first * row_steps;
  const int left = token_tiles - first;
  const int width = left < grid.band ? left : grid.band;
  const int row_step = in_band / width;
  const int token_tile = first + in_band % width;
  const int row_tile = row_step * grid.rows_per_cluster() + grid.row_of(rank);
  const int part = grid.part_of(rank);
  Tile tile = tile_of(grid, row_tile, token_tile, row_granule);
  tile.chunk_begin = even_begin(part, grid.split, grid.chunks);
  tile.chunk_end = even_begin(part + 1, grid.split, grid.chunks);
  return tile;
}

/// The range of item `item` when even_begin() cuts `count` items into `parts` ranges.
[[nodiscard]] QUAVER_HD constexpr int even_part(int item, int parts, int count) {
  const int size = count / parts;
  const int longer = count % parts;
  const int in_longer = longer * (size + 1);
  return item < in_longer ? item / (size + 1) : longer + (item - in_longer) / size;
}

/// What a CTA computes without a break: a tile or, with ranges, a part of one.
struct Work {
  Tile tile{};
  int first_cta = 0;  ///< ranges: the CTA that computes the first part of the tile
  int parts = 1;      ///< ranges: of the tile, in CTAs first_cta, first_cta + token tiles, …
};

/// Goes through the work of a CTA. Row tiles begin at multiples of kRowGranule groups.
template <int kRowGranule = 1>
class WorkList {
 public:
  QUAVER_HD constexpr WorkList(const TileGrid& grid, int cluster, int num_clusters, int rank)
      : grid_(grid), rank_(rank), step_(num_clusters), next_(cluster), end_(grid.num_tiles()) {
    if (grid.ranges == 0) return;
    token_tile_ = cluster % grid.token_tiles();
    const int range = cluster / grid.token_tiles();
    const int per_tile = grid.ranges / grid.row_tiles;
    tile_ranges_ = per_tile * grid.row_tiles == grid.ranges ? per_tile : 0;
    next_ = range_begin(range);
    end_ = range_begin(range + 1);
  }

  [[nodiscard]] QUAVER_HD constexpr bool more() const { return next_ < end_; }

  /// more(): the next work.
  QUAVER_HD constexpr Work take() {
    if (grid_.ranges == 0) {
      const int index = next_;
      next_ += step_;
      return {.tile = tile_at(grid_, index, rank_, kRowGranule)};
    }
    const int row_tile = next_ / grid_.chunks;
    const int first = row_tile * grid_.chunks;
    const int last = first + grid_.chunks - 1;
    const int all = grid_.row_tiles * grid_.chunks;
    const int first_range = tile_ranges_ > 0 ? row_tile * tile_ranges_ : even_part(first, grid_.ranges, all);
    Work work{.tile = tile_of(grid_, row_tile, token_tile_, kRowGranule),
              .first_cta = first_range * grid_.token_tiles() + token_tile_,
              .parts = tile_ranges_ > 0 ? tile_ranges_ : even_part(last, grid_.ranges, all) - first_range + 1};
    work.tile.chunk_begin = next_ - first;
    work.tile.chunk_end = end_ - first < grid_.chunks ? end_ - first : grid_.chunks;
    next_ = first + work.tile.chunk_end;
    return work;
  }

 private:
  /// First chunk of a range.
  [[nodiscard]] QUAVER_HD constexpr int range_begin(int range) const {
    if (tile_ranges_ == 0) return even_begin(range, grid_.ranges, grid_.row_tiles * grid_.chunks);
    return range / tile_ranges_ * grid_.chunks + even_begin(range % tile_ranges_, tile_ranges_, grid_.chunks);
  }

  const TileGrid& grid_;
  int rank_;
  int step_;
  int next_;  ///< tile or, with ranges, chunk
  int end_;
  int token_tile_ = 0;
  int tile_ranges_ = 0;  ///< of each row tile, cut by itself; 0: where they have not equally many, all are cut in one
};

}  // namespace quaver::packed_fp8
