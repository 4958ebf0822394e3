// How row blocks are cut over their keys. A prompt makes more items (row block x kv head) than there are SMs, and those
// with most tiles are drawn first; a few rows over a long context do not, and one such chunk beside a prompt would
// still be running when everything else is done. Host and device, unit-tested on the CPU.
//
// Cuts depend on the lengths of the step and on the grid alone: results repeat bit for bit. In batch-invariant mode
// nothing is cut.
#pragma once

#include <cstdint>

#include "attention/tiles.h"

namespace quaver::schedule {

/// Parts are not made shorter: Q, the epilogue and the second kernel cost an item about two tiles.
inline constexpr int kMinPartTiles = 8;

/// Parts of a block of `tiles` KV tiles. They are even cuts: none is empty.
[[nodiscard]] QUAVER_HD constexpr int num_parts(int tiles, int max_part_tiles) {
  return tiles > max_part_tiles ? (tiles + max_part_tiles - 1) / max_part_tiles : 1;
}

/// All row blocks of a step.
struct BlockTotals {
  int64_t tiles = 0;
  int longest = 0;  ///< tiles
  int blocks = 0;
  int num_kv_heads = 1;
};

/// Slots for partial results that the parts of all kv heads take at most: a cut block has more than
/// total / grid tiles a head, so the parts are fewer than twice the CTAs.
[[nodiscard]] QUAVER_HD constexpr int64_t max_part_slots(int grid) {
  return 2 * int64_t{grid};
}

/// Most tiles that a part may have. Fewer items than CTAs: the fewest with which all parts still run at once. Else a
/// CTA's share of all tiles, which only stragglers exceed. `count_parts(n)`: parts of all blocks with n tiles at most.
template <class CountParts>
[[nodiscard]] QUAVER_HD constexpr int max_part_tiles(const BlockTotals& totals, int grid, CountParts count_parts) {
  const int64_t share = (totals.tiles * totals.num_kv_heads + grid - 1) / grid;
  if (kMinPartTiles >= totals.longest) return kMinPartTiles;
  if (share >= totals.longest) return totals.longest;
  int low = share > kMinPartTiles ? static_cast<int>(share) : kMinPartTiles;
  if (int64_t{totals.blocks} * totals.num_kv_heads > grid) return low;
  int high = totals.longest;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (int64_t{count_parts(middle)} * totals.num_kv_heads <= grid) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return high;
}

}  // namespace quaver::schedule
