// The walk of one CTA over its piece of the work list: yields the items that the consumers work on.
#pragma once

#include "attention/decode_fp8/params.h"
#include "attention/decode_fp8/traits.h"

namespace quaver::decode_fp8 {

/// Run by all lanes of the producer warp alike. Values of the next sequence are loaded one sequence ahead.
template <class Traits>
class WorkWalker {
 public:
  __device__ WorkWalker(const Parameters& p, int piece) : p_(p), piece_(piece) {
    const auto* words = reinterpret_cast<const int4*>(p.work.records + piece);
    const int4 place = __ldcg(words);
    const int4 line = __ldcg(words + 1);
    const int4 query = __ldcg(words + 2);
    sequence_ = place.x;
    head_ = place.y;
    position_ = line.x;
    end_ = line.y;
    total_ = line.z;
    pieces_ = line.w;
    first_page = query.z;
    first_sequence = sequence_;
    slot_ = query.w;
    if (position_ >= end_) return;
    enter(query.x, query.y, place.w);
    const schedule::UnitPlace unit = schedule::place_unit(work_, Traits::kTile, place.z);
    split_ = unit.split;
    offset_ = unit.offset;
  }

  /// The next item with something to do; false at the end of the piece.
  __device__ bool next(WorkItem& item) {
    while (position_ < end_) {
      const tiles::TileSpan span = schedule::item_tiles(work_, Traits::kTile, split_);
      const int tiles = static_cast<int>(span.last - span.first);
      const int units = tiles > 0 ? schedule::kItemOverhead + tiles : 1;
      bool mine = work_.query_len > 0;
      int taken = min(units - offset_, end_ - position_);
      if (p_.shape.fixed_splits) {  // whole items only, and only those that begin here
        mine = mine && offset_ == 0;
        taken = units - offset_;
      }
      const int begin = max(0, offset_ - schedule::kItemOverhead);
      const int end = min(tiles, max(0, offset_ + taken - schedule::kItemOverhead));
      mine = mine && (end > begin || (tiles == 0 && offset_ == 0));
      if (mine) {
        item = {.rows = work_.query_len * p_.shape.group,
                .sequence = sequence_,
                .head = head_,
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
        if (p_.shape.fixed_splits) {
          item.part = split_;
          item.num_parts = work_.num_splits;
          item.first_slot = item.rest_slot = slot_ + head_ * work_.fixed_slots();
        } else if (end - begin < tiles) {
          place_parts(position_ - offset_, units, item);
        }
      }
      position_ += taken;
      offset_ += taken;
      if (offset_ == units) advance();
      if (mine) return true;
    }
    return false;
  }

  int first_sequence = 0;  ///< of the piece; its record brought page ids …
  int first_page = 0;      ///< … from this block table entry on

 private:
  /// The item begins at unit `begin` of the line and is cut: which pieces hold its parts.
  __device__ void place_parts(int begin, int units, WorkItem& item) const {
    const auto first = static_cast<int>(tiles::even_cut_owner(total_, pieces_, begin + schedule::kItemOverhead));
    const auto last = static_cast<int>(tiles::even_cut_owner(total_, pieces_, begin + units - 1));
    const schedule::PartSlots slots = schedule::cut_slots(p_.work.max_pieces, first);
    item.part = piece_ - first;
    item.num_parts = last - first + 1;
    item.first_slot = slots.first;
    item.rest_slot = slots.rest;
  }

  __device__ void advance() {
    offset_ = 0;
    if (++split_ < work_.num_splits) return;
    split_ = 0;
    if (++head_ < p_.shape.num_kv_heads) return;
    head_ = 0;
    slot_ += work_.fixed_slots() * p_.shape.num_kv_heads;
    ++sequence_;
    if (position_ < end_) enter(work_.query_begin + work_.query_len, next_query_end_, next_kv_len_);
  }

  __device__ void enter(int query_begin, int query_end, int kv_len) {
    work_ = schedule::sequence_work(p_.shape, Traits::kTile, query_begin, query_end, kv_len);
    const bool more = sequence_ + 1 < p_.num_sequences;
    next_kv_len_ = more ? p_.seq_lens[sequence_ + 1] : 0;
    next_query_end_ = more ? p_.query_start[sequence_ + 2] : 0;
  }

  const Parameters& p_;
  int piece_;
  schedule::SequenceWork work_{};
  int sequence_ = 0;
  int head_ = 0;
  int split_ = 0;
  int offset_ = 0;    // units into the item
  int position_ = 0;  // units of the whole line
  int end_ = 0;
  int total_ = 0;
  int pieces_ = 1;
  int slot_ = 0;
  int next_kv_len_ = 0;
  int next_query_end_ = 0;
};

}  // namespace quaver::decode_fp8
