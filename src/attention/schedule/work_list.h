// The work list of one step and cache group: how a persistent grid shares all (sequence, kv head) items.
//
// The units of all items stand in one line, sequence by sequence and head by head, and are cut evenly into pieces
// (tiles::even_cut). Whoever processes a piece (a CTA) knows from arithmetic alone which other pieces hold parts of an
// item that was cut, so that partial results need two slots a piece and no search. With fixed splits nothing is cut: a
// piece takes the items that begin in it, and every split of an item with more than one has a slot of its own.
#pragma once

#include <cstdint>
#include <memory>

#include "attention/schedule/sequence_work.h"
#include "core/cuda.h"
#include "quaver/attention.h"

namespace quaver::schedule {

/// Page ids that a record carries: they save the first tiles one dependent load.
inline constexpr int kRecordPages = 8;

/// A piece needs at least this many units; fewer pieces than the grid are used for tiny batches.
inline constexpr int kMinPieceUnits = 2;

/// Where one piece begins. Five 16-byte words, read as such.
struct alignas(16) PieceRecord {
  int sequence = 0;
  int head = 0;
  int unit = 0;  ///< of the head's units
  int kv_len = 0;
  int begin = 0;  ///< units of the whole line
  int end = 0;
  int total = 0;   ///< units of the whole line
  int pieces = 0;  ///< pieces in use; the rest are empty (begin == end)
  int query_begin = 0;
  int query_end = 0;
  int first_page = 0;  ///< index into the block table row of page_ids[0]
  int slot = 0;        ///< fixed splits: slot of the sequence's first head and split
  int page_ids[kRecordPages] = {};
};

/// An item that begins in a piece and is cut: what the combine kernel does for it.
struct alignas(16) CutRecord {
  int num_parts = 0;  ///< 0: none
  int sequence = 0;
  int head = 0;
  int query_begin = 0;
  int rows = 0;
};

/// Slots of the partial results of an item: part k lies in slot first (k = 0) or rest + k.
struct PartSlots {
  int first = 0;
  int rest = 0;
  [[nodiscard]] QUAVER_HD constexpr int slot(int part) const { return part == 0 ? first : rest + part; }
};

/// Parts of an item that begins in piece `piece` of `max_pieces`: a piece holds at most one item that began earlier
/// (slot = piece) and one that ends later (slot = max_pieces + piece).
[[nodiscard]] QUAVER_HD constexpr PartSlots cut_slots(int max_pieces, int piece) {
  return {.first = max_pieces + piece, .rest = piece};
}

/// What schedule() reads; device memory.
struct ScheduleInput {
  const int32_t* seq_lens = nullptr;     ///< [B]
  const int32_t* query_start = nullptr;  ///< [B+1]
  const int32_t* block_table = nullptr;  ///< [B, max_pages]
  int64_t block_table_stride = 0;        ///< elements between rows
  int num_sequences = 0;
};

struct WorkListView {
  const PieceRecord* records = nullptr;  ///< [max_pieces]
  const CutRecord* cuts = nullptr;       ///< [max_pieces]
  int max_pieces = 0;
};

/// Device memory of one work list. One cache group, one stream.
class WorkList {
 public:
  /// `max_pieces`: CTAs of the persistent grid. `max_fixed_slots`: slots for partial results in fixed-split mode.
  WorkList(const ScheduleShape& shape, int64_t max_sequences, int max_pieces, int64_t max_fixed_slots);

  /// Launches the kernel that fills the list from the lengths on the device. No synchronisation; graph-safe.
  /// Throws Error(kInvalidArgument) for more sequences than the list was made for.
  void schedule(const ScheduleInput& input, cudaStream_t stream);

  [[nodiscard]] WorkListView view() const;
  [[nodiscard]] const ScheduleShape& shape() const noexcept { return shape_; }

 private:
  ScheduleShape shape_;
  int64_t max_fixed_slots_ = 0;
  DeviceBuffer<int2> prefix_;  // [max_sequences + 1]: units and fixed slots, of one kv head, before each sequence
  DeviceBuffer<PieceRecord> records_;
  DeviceBuffer<CutRecord> cuts_;
};

}  // namespace quaver::schedule
