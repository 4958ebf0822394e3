// How much work one sequence is, and how a list of units is cut into pieces. Host and device, unit-tested on the CPU.
//
// An item is one (sequence, kv head); with fixed splits one (sequence, kv head, split). It weighs kItemOverhead units
// (loading Q, writing O) and one unit a KV tile. An item without a tile still has to write its zeros and weighs one.
#pragma once

#include <cstdint>

#include "attention/tiles.h"

namespace quaver::schedule {

/// Units of starting and ending an item, in KV tiles; 0, 2 and 3 measured the same within 1 %.
inline constexpr int kItemOverhead = 1;

/// What the work lists of one cache group have in common.
struct ScheduleShape {
  int num_kv_heads = 1;
  int group = 1;                         ///< query heads of one kv head
  int max_rows = tiles::kMaxDecodeRows;  ///< query rows a kv head; sequences with more belong to another kernel
  int page_size = 64;                    ///< tokens
  int kv_tile = 64;                      ///< tokens
  tiles::Mask mask{};
  int min_piece_units = 1;    ///< least units of a CTA's piece
  bool fixed_splits = false;  ///< batch-invariant: items end at multiples of kFixedSplitTokens and are never cut
};

/// One sequence, per kv head.
struct SequenceWork {
  int query_begin = 0;  ///< first row of q that is this sequence's
  int query_len = 0;
  int kv_len = 0;
  int first_key = 0;  ///< lowest key that any query token sees
  int first_tile = 0;
  int last_tile = 0;  ///< one past
  int num_splits = 1;

  [[nodiscard]] QUAVER_HD constexpr int num_tiles() const { return last_tile - first_tile; }
  /// Units of all its items of one kv head.
  [[nodiscard]] QUAVER_HD constexpr int units() const {
    return num_tiles() > 0 ? num_splits * kItemOverhead + num_tiles() : 1;
  }
  /// Slots for partial results that one kv head takes with fixed splits.
  [[nodiscard]] QUAVER_HD constexpr int fixed_slots() const { return num_splits > 1 ? num_splits : 0; }
};

[[nodiscard]] QUAVER_HD constexpr SequenceWork sequence_work(const ScheduleShape& shape, int kv_tile, int query_begin,
                                                             int query_end, int kv_len) {
  SequenceWork work{.query_begin = query_begin, .query_len = query_end - query_begin, .kv_len = kv_len};
  if (work.query_len * shape.group > shape.max_rows) work.query_len = 0;
  const tiles::VisibleKeys keys = tiles::visible_keys(shape.mask, kv_len, work.query_len, 0, work.query_len);
  const tiles::TileRange range = tiles::tile_range(keys, kv_tile);
  work.first_key = static_cast<int>(keys.any.first);
  work.first_tile = static_cast<int>(range.first);
  work.last_tile = static_cast<int>(range.last);
  if (shape.fixed_splits && work.num_tiles() > 0) {
    work.num_splits = static_cast<int>(tiles::num_fixed_splits(range.first, range.last, kv_tile));
  }
  return work;
}

/// Where a unit of one kv head lies.
struct UnitPlace {
  int split = 0;
  int offset = 0;  ///< units into the item
};

/// The split that unit `unit` of one kv head lies in: all but the first and the last split are whole.
[[nodiscard]] QUAVER_HD constexpr UnitPlace place_unit(const SequenceWork& work, int kv_tile, int unit) {
  if (work.num_splits == 1) return {.split = 0, .offset = unit};
  const tiles::TileSpan first = tiles::fixed_split(work.first_tile, work.last_tile, kv_tile, 0);
  const int first_units = kItemOverhead + static_cast<int>(first.last - first.first);
  if (unit < first_units) return {.split = 0, .offset = unit};
  const int whole_units = kItemOverhead + tiles::kFixedSplitTokens / kv_tile;
  return {.split = 1 + (unit - first_units) / whole_units, .offset = (unit - first_units) % whole_units};
}

/// Tiles of one item.
[[nodiscard]] QUAVER_HD constexpr tiles::TileSpan item_tiles(const SequenceWork& work, int kv_tile, int split) {
  if (work.num_splits == 1) return {.first = work.first_tile, .last = work.last_tile};
  return tiles::fixed_split(work.first_tile, work.last_tile, kv_tile, split);
}

}  // namespace quaver::schedule
