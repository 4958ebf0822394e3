// The work list of the prefill kernel: the row blocks of a step, those with most KV tiles first. CTAs of a persistent
// grid draw items (block x kv head) by ticket, so late and long ones do not meet at the end. Which CTA works on an
// item, and in which order blocks of equal length stand, changes no result: an item is worked on by one CTA, tile by
// tile.
#pragma once

#include <cstdint>

#include "attention/schedule/row_blocks.h"
#include "attention/schedule/walker.h"
#include "core/cuda.h"

namespace quaver::schedule {

struct BlockListView {
  const RowBlock* blocks = nullptr;
  const int* num_blocks = nullptr;
  int* ticket = nullptr;  ///< items drawn beyond the first of every CTA; 0 between kernels
};

/// Device memory of one list. One cache group, one stream.
class BlockList {
 public:
  /// `max_query_len`: most query tokens of one sequence.
  BlockList(const BlockShape& shape, int64_t max_sequences, int max_query_len);

  /// Launches the kernel that fills the list from the lengths on the device. No synchronisation; graph-safe.
  /// Throws Error(kInvalidArgument) for more sequences than the list was made for.
  void schedule(const SequenceLengths& lengths, cudaStream_t stream);

  [[nodiscard]] BlockListView view() const;
  [[nodiscard]] const BlockShape& shape() const noexcept { return shape_; }

 private:
  BlockShape shape_;
  DeviceBuffer<int> blocks_before_;  // [max_sequences + 1]
  DeviceBuffer<RowBlock> blocks_;
  DeviceBuffer<int> counters_;  // number of blocks, ticket
};

}  // namespace quaver::schedule
