// The work list of the prefill kernel: the row blocks of a step, those with most KV tiles first, long ones cut into
// parts (block_cut.h). CTAs of a persistent grid draw items (block or part x kv head) by ticket, so late and long ones
// do not meet at the end. Which CTA works on an item, in which order blocks of equal length stand and which slots the
// parts get changes no result: an item is worked on by one CTA, tile by tile, and parts are added in their order.
#pragma once

#include <cstdint>

#include "attention/schedule/block_cut.h"
#include "attention/schedule/cut_list.h"
#include "attention/schedule/row_blocks.h"
#include "attention/schedule/walker.h"
#include "core/cuda.h"

namespace quaver::schedule {

struct BlockListView {
  const RowBlock* blocks = nullptr;
  const int* num_blocks = nullptr;
  int* ticket = nullptr;  ///< items drawn beyond the first of every CTA; 0 between kernels
};

/// What a list is made for.
struct BlockListLimits {
  int64_t max_sequences = 0;
  int max_query_len = 1;  ///< most query tokens of one sequence
  int num_kv_heads = 1;
  int cut_grid = 0;  ///< CTAs that long blocks are cut for; 0: never cut
};

/// Device memory of one list. One cache group, one stream.
class BlockList {
 public:
  BlockList(const BlockShape& shape, const BlockListLimits& limits);

  /// Launches the kernel that fills the list from the lengths on the device. No synchronisation; graph-safe.
  /// Throws Error(kInvalidArgument) for more sequences than the list was made for.
  /// `min_rows`: BlockShape's of this step. `span_ends`: [T] on the device (span_ends.h), or null.
  void schedule(const SequenceLengths& lengths, int min_rows, const int32_t* span_ends, cudaStream_t stream);

  [[nodiscard]] BlockListView view() const;
  /// The cut items; their parts take less than max_part_slots(cut_grid) slots.
  [[nodiscard]] CutListView cuts() const;
  [[nodiscard]] const BlockShape& shape() const noexcept { return shape_; }

 private:
  BlockShape shape_;
  BlockListLimits limits_;
  DeviceBuffer<int> blocks_before_;  // [max_sequences + 1]
  DeviceBuffer<RowBlock> blocks_;
  DeviceBuffer<CutRecord> cuts_;
  DeviceBuffer<int> counters_;  // number of blocks, ticket, number of cuts
};

}  // namespace quaver::schedule
