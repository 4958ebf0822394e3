// The work list of one step and cache group: how a persistent grid shares all (sequence, kv head) items.
//
// The units of all items stand in one line, sequence by sequence and head by head, and are cut into pieces
// (line_cut.h). Whoever processes a piece (a CTA) knows from arithmetic alone which other pieces hold parts of an item
// that was cut, so that partial results need two slots a piece and no search. With fixed splits nothing is cut: a piece
// takes the items that begin in it, and every split of an item with more than one has a slot of its own.
#pragma once

#include <cstdint>
#include <memory>

#include "attention/schedule/walker.h"
#include "core/cuda.h"
#include "quaver/attention.h"

namespace quaver::schedule {

/// Page ids that a record carries: they save the first tiles one dependent load.
inline constexpr int kRecordPages = 8;

/// Where one piece begins: its first item, ready to be worked on without any arithmetic, and where the walk goes on.
/// Read in 16-byte words.
struct alignas(16) PieceRecord {
  WorkItem first;  ///< rows < 0: nothing to do in this piece
  WalkState next;
  int page_ids[kRecordPages];  ///< block table entries from the one that holds the first token to load
};

/// What schedule() reads; device memory.
struct ScheduleInput {
  SequenceLengths lengths{};
  const int32_t* block_table = nullptr;  ///< [B, max_pages]
  int64_t block_table_stride = 0;        ///< elements between rows
};

struct WorkListView {
  const PieceRecord* records = nullptr;  ///< [max_pieces]
  CutListView cuts{};                    ///< at most max_pieces
  int* ticket = nullptr;                 ///< pieces taken beyond the first round; 0 between kernels
  int max_pieces = 0;
};

/// Device memory of one work list. One cache group, one stream.
class WorkList {
 public:
  /// `grid`: CTAs of the persistent grid. `max_rounds`: of pieces (line_cut.h). `max_fixed_slots`: slots for partial
  /// results in fixed-split mode.
  WorkList(const ScheduleShape& shape, int64_t max_sequences, int grid, int max_rounds, int64_t max_fixed_slots);

  /// Launches the kernel that fills the list from the lengths on the device. No synchronisation; graph-safe.
  /// `max_rows`: ScheduleShape's of this step, at most that of the list. Throws Error(kInvalidArgument) for more
  /// sequences than the list was made for.
  void schedule(const ScheduleInput& input, int max_rows, cudaStream_t stream);

  [[nodiscard]] WorkListView view() const;
  [[nodiscard]] const ScheduleShape& shape() const noexcept { return shape_; }

 private:
  ScheduleShape shape_;
  int grid_ = 0;
  int64_t max_fixed_slots_ = 0;
  DeviceBuffer<int2> prefix_;  // [max_sequences + 1]: units and fixed slots, of one kv head, before each sequence
  DeviceBuffer<PieceRecord> records_;
  DeviceBuffer<CutRecord> cuts_;
  DeviceBuffer<int> counters_;  // number of cuts, ticket
};

}  // namespace quaver::schedule
