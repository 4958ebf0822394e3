#include "attention/schedule/block_list.h"

#include "attention/schedule/block_list.cuh"

namespace quaver::schedule {

BlockList::BlockList(const BlockShape& shape, const BlockListLimits& limits)
    : shape_(shape),
      limits_(limits),
      blocks_before_(limits.max_sequences + 1),
      blocks_(limits.max_sequences * num_row_blocks(shape, limits.max_query_len) + max_part_slots(limits.cut_grid)),
      cuts_(limits.cut_grid),
      counters_(3) {}

void BlockList::schedule(const SequenceLengths& lengths, int min_rows, const int32_t* span_ends, cudaStream_t stream) {
  check(lengths.num_sequences >= 0 && lengths.num_sequences < blocks_before_.size(), "num_sequences ",
        lengths.num_sequences, ": expected 0 ... ", blocks_before_.size() - 1);
  BlockShape shape = shape_;
  shape.min_rows = min_rows;
  launch_programmatic(
      quaver_block_list, dim3(1), kBlockListThreads, 0, stream,
      BlockListParameters{.shape = shape,
                          .lengths = lengths,
                          .span_ends = span_ends,
                          .num_kv_heads = limits_.num_kv_heads,
                          .cut_grid = limits_.cut_grid,
                          .blocks_before = blocks_before_.data(),
                          .blocks = blocks_.data(),
                          .num_blocks = counters_.data(),
                          .cuts = cuts_.data(),
                          .num_cuts = counters_.data() + 2,
                          .max_blocks = static_cast<int>(blocks_.size() - max_part_slots(limits_.cut_grid))});
}

BlockListView BlockList::view() const {
  return {.blocks = blocks_.data(), .num_blocks = counters_.data(), .ticket = counters_.data() + 1};
}

CutListView BlockList::cuts() const {
  return {.records = cuts_.data(), .count = counters_.data() + 2};
}

}  // namespace quaver::schedule
