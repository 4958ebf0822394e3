// The walk over one piece of the work list: yields the items, or parts of items, that a CTA works on. Host and device:
// the schedule kernel takes the first step for every piece, the attention kernel goes on from there, and a CPU test
// checks that all pieces together cover every tile of every sequence once.
#pragma once

#include "attention/schedule/cut_list.h"
#include "attention/schedule/line_cut.h"
#include "attention/schedule/sequence_work.h"

namespace quaver::schedule {

/// Parts of an item that begins in piece `piece` of `max_pieces`: a piece holds at most one item that began earlier
/// (slot = piece) and one that ends later (slot = max_pieces + piece).
[[nodiscard]] QUAVER_HD constexpr PartSlots cut_slots(int max_pieces, int piece) {
  return {.first = max_pieces + piece, .rest = piece};
}

/// One item of a CTA's piece, or its part of one. Also lives in shared memory, so without initialisers.
struct WorkItem {
  int rows;  ///< query rows of the kv head; negative: no more work
  int sequence;
  int head;  ///< kv head
  int kv_len;
  int query_begin;
  int query_len;
  int first_key;   ///< lowest key that any row sees
  int tile_begin;  ///< absolute
  int tile_end;
  int part;  ///< which part of the item this is …
  int num_parts;
  int first_slot;  ///< … and where the parts go (PartSlots)
  int rest_slot;
};

/// Where a walk stands: before unit `offset` of an item.
struct WalkState {
  LineCut line{};
  int position = 0;  ///< units of the whole line
  int end = 0;
  int sequence = 0;
  int head = 0;
  int split = 0;
  int offset = 0;
  int slot = 0;  ///< fixed splits: slot of the sequence's first head and split
  int query_begin = 0;
  int query_end = 0;
  int kv_len = 0;
};

/// Lengths of all sequences.
struct SequenceLengths {
  const int32_t* seq_lens = nullptr;     ///< [B]
  const int32_t* query_start = nullptr;  ///< [B+1]
  int num_sequences = 0;
};

class WorkWalker {
 public:
  QUAVER_HD WorkWalker(const ScheduleShape& shape, const SequenceLengths& lengths, int kv_tile, int max_pieces,
                       int piece, const WalkState& state)
      : shape_(shape), lengths_(lengths), kv_tile_(kv_tile), max_pieces_(max_pieces), piece_(piece), state_(state) {}

  /// The next item with something to do; false at the end of the piece.
  QUAVER_HD bool next(WorkItem& item) {
    if (!entered_) enter();
    while (state_.position < state_.end) {
      const tiles::TileSpan span = item_tiles(work_, kv_tile_, state_.split);
      const int tiles = static_cast<int>(span.last - span.first);
      const int units = tiles > 0 ? kItemOverhead + tiles : 1;
      bool mine = work_.query_len > 0;
      int taken = smaller(units - state_.offset, state_.end - state_.position);
      if (shape_.fixed_splits) {  // whole items only, and only those that begin here
        mine = mine && state_.offset == 0;
        taken = units - state_.offset;
      }
      const int begin = larger(0, state_.offset - kItemOverhead);
      const int end = smaller(tiles, larger(0, state_.offset + taken - kItemOverhead));
      mine = mine && (end > begin || (tiles == 0 && state_.offset == 0));
      if (mine) {
        item = {.rows = work_.query_len * shape_.group,
                .sequence = state_.sequence,
                .head = state_.head,
                .kv_len = work_.kv_len,
                .query_begin = work_.query_begin,
                .query_len = work_.query_len,
                .first_key = work_.first_key,
                .tile_begin = static_cast<int>(span.first) + begin,
                .tile_end = static_cast<int>(span.first) + end,
                .part = 0,
                .num_parts = 1,
                .first_slot = 0,
                .rest_slot = 0};
        if (shape_.fixed_splits) {
          item.part = state_.split;
          item.num_parts = work_.num_splits;
          item.first_slot = item.rest_slot = state_.slot + state_.head * work_.fixed_slots();
        } else if (end - begin < tiles) {
          place_parts(state_.position - state_.offset, units, item);
        }
      }
      state_.position += taken;
      state_.offset += taken;
      if (state_.offset == units) advance();
      if (mine) return true;
    }
    return false;
  }

  [[nodiscard]] QUAVER_HD const WalkState& state() const { return state_; }

 private:
  static QUAVER_HD constexpr int smaller(int a, int b) { return a < b ? a : b; }
  static QUAVER_HD constexpr int larger(int a, int b) { return a > b ? a : b; }

  /// The item begins at unit `begin` of the line and is cut: which pieces hold its parts.
  QUAVER_HD void place_parts(int begin, int units, WorkItem& item) const {
    const int first = state_.line.owner(begin + kItemOverhead);
    const int last = state_.line.owner(begin + units - 1);
    const PartSlots slots = cut_slots(max_pieces_, first);
    item.part = piece_ - first;
    item.num_parts = last - first + 1;
    item.first_slot = slots.first;
    item.rest_slot = slots.rest;
  }

  QUAVER_HD void advance() {
    state_.offset = 0;
    if (++state_.split < work_.num_splits) return;
    state_.split = 0;
    if (++state_.head < shape_.num_kv_heads) return;
    state_.head = 0;
    state_.slot += work_.fixed_slots() * shape_.num_kv_heads;
    ++state_.sequence;
    if (state_.position >= state_.end) return;
    state_.query_begin = state_.query_end;
    state_.query_end = next_query_end_;
    state_.kv_len = next_kv_len_;
    enter();
  }

  /// Takes the sequence of the state up; values of the one after it are loaded ahead.
  QUAVER_HD void enter() {
    entered_ = true;
    if (state_.position >= state_.end) return;
    work_ = sequence_work(shape_, kv_tile_, state_.query_begin, state_.query_end, state_.kv_len);
    const bool more = state_.sequence + 1 < lengths_.num_sequences;
    next_kv_len_ = more ? lengths_.seq_lens[state_.sequence + 1] : 0;
    next_query_end_ = more ? lengths_.query_start[state_.sequence + 2] : 0;
  }

  const ScheduleShape& shape_;
  const SequenceLengths& lengths_;
  int kv_tile_;
  int max_pieces_;
  int piece_;
  WalkState state_;
  SequenceWork work_{};
  bool entered_ = false;
  int next_kv_len_ = 0;
  int next_query_end_ = 0;
};

/// The state of a piece at its beginning. `prefix` has the sums, of one kv head, over the sequences before b as
/// units_before(b) and slots_before(b), and sequence_of(unit), the sequence that a unit of the line belongs to.
template <class Prefix>
[[nodiscard]] QUAVER_HD WalkState begin_piece(const ScheduleShape& shape, const SequenceLengths& lengths,
                                              const LineCut& line, int piece, const Prefix& prefix) {
  WalkState state{.line = line, .position = line.total, .end = line.total};
  if (piece >= line.num_pieces() || line.total == 0) return state;
  state.position = line.begin(piece);
  state.end = line.begin(piece + 1);
  state.sequence = prefix.sequence_of(state.position);
  state.query_begin = lengths.query_start[state.sequence];
  state.query_end = lengths.query_start[state.sequence + 1];
  state.kv_len = lengths.seq_lens[state.sequence];
  const SequenceWork work = sequence_work(shape, shape.kv_tile, state.query_begin, state.query_end, state.kv_len);
  const int unit = state.position - prefix.units_before(state.sequence) * shape.num_kv_heads;
  state.head = unit / work.units();
  const UnitPlace place = place_unit(work, shape.kv_tile, unit % work.units());
  state.split = place.split;
  state.offset = place.offset;
  state.slot = prefix.slots_before(state.sequence) * shape.num_kv_heads;
  return state;
}

}  // namespace quaver::schedule
