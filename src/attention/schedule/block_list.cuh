// One CTA makes the list: a running sum of blocks over the sequences, the cut of long ones, then a counting sort of all
// parts by their number of KV tiles.
#pragma once

#include "attention/kernel_parts.cuh"
#include "attention/schedule/block_cut.h"
#include "attention/schedule/cut_list.h"
#include "attention/schedule/row_blocks.h"
#include "attention/schedule/walker.h"
#include "ptx/launch.cuh"

namespace quaver::schedule {

inline constexpr int kBlockListThreads = 1024;

struct BlockListParameters {
  BlockShape shape{};
  SequenceLengths lengths{};
  const int32_t* span_ends = nullptr;  ///< [T] or null
  int num_kv_heads = 1;
  int cut_grid = 0;  ///< CTAs that parts are made for; 0: blocks are not cut
  int* blocks_before = nullptr;
  RowBlock* blocks = nullptr;
  int* num_blocks = nullptr;
  CutRecord* cuts = nullptr;
  int* num_cuts = nullptr;
  int max_blocks = 0;
};

struct BlockListState {
  int warp_sums[kBlockListThreads / 32];
  unsigned long long tiles;          ///< of all blocks
  int longest;                       ///< KV tiles of a block
  int in_bucket[kBlockListThreads];  ///< parts, then the place of the bucket's next part
  int num_slots;                     ///< handed out to cut blocks
  int num_cuts;
};

/// Sum of `value` over the threads before this one; `total` over all threads.
inline __device__ int exclusive_sum(int value, BlockListState& shared, int& total) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  int inclusive = value;
  for (int distance = 1; distance < 32; distance *= 2) {
    const int other = __shfl_up_sync(kAllLanes, inclusive, distance);
    if (lane >= distance) inclusive += other;
  }
  if (lane == 31) shared.warp_sums[warp] = inclusive;
  __syncthreads();
  int exclusive = inclusive - value;
  total = 0;
  for (int w = 0; w < kBlockListThreads / 32; ++w) {
    if (w < warp) exclusive += shared.warp_sums[w];
    total += shared.warp_sums[w];
  }
  __syncthreads();
  return exclusive;
}

inline __device__ int query_len(const BlockListParameters& p, int sequence) {
  return p.lengths.query_start[sequence + 1] - p.lengths.query_start[sequence];
}

inline __device__ int sum_blocks(const BlockListParameters& p, BlockListState& shared) {
  int before = 0;
  for (int base = 0; base < p.lengths.num_sequences; base += kBlockListThreads) {
    const int sequence = base + static_cast<int>(threadIdx.x);
    const bool mine = sequence < p.lengths.num_sequences;
    int total = 0;
    const int exclusive = exclusive_sum(mine ? num_row_blocks(p.shape, query_len(p, sequence)) : 0, shared, total);
    if (mine) p.blocks_before[sequence] = before + exclusive;
    before += total;
  }
  if (threadIdx.x == 0) {
    p.blocks_before[p.lengths.num_sequences] = before;
    if (before > p.max_blocks) __trap();  // longer queries than the list was made for would be written out of bounds
  }
  __syncthreads();
  return before;
}

inline __device__ RowBlock load_block(const BlockListParameters& p, int index) {
  int low = 0;
  int high = p.lengths.num_sequences;
  while (high - low > 1) {  // the last sequence with blocks_before <= index
    const int middle = (low + high) / 2;
    (p.blocks_before[middle] <= index ? low : high) = middle;
  }
  const int begin = p.lengths.query_start[low];
  return row_block(p.shape, low, begin, query_len(p, low), p.lengths.seq_lens[low], index - p.blocks_before[low],
                   p.span_ends == nullptr ? nullptr : p.span_ends + begin);
}

/// Bucket 0 has the longest parts.
inline __device__ int bucket(const RowBlock& block, int longest) {
  return static_cast<int>(int64_t{longest - block.num_tiles()} * (kBlockListThreads - 1) / max(longest, 1));
}

/// Most tiles of a part (block_cut.h).
inline __device__ int longest_part(const BlockListParameters& p, int num_blocks, BlockListState& shared) {
  const auto thread = static_cast<int>(threadIdx.x);
  int own_tiles = 0;  // of block `thread`: more blocks than threads are more items than CTAs, and then nobody asks
  for (int i = thread; i < num_blocks; i += kBlockListThreads) {
    const int tiles = load_block(p, i).num_tiles();
    if (i == thread) own_tiles = tiles;
    atomicAdd(&shared.tiles, static_cast<unsigned long long>(tiles));
    atomicMax(&shared.longest, tiles);
  }
  __syncthreads();
  if (p.cut_grid == 0) return shared.longest;
  const BlockTotals totals{.tiles = static_cast<int64_t>(shared.tiles),
                           .longest = shared.longest,
                           .blocks = num_blocks,
                           .num_kv_heads = p.num_kv_heads};
  return max_part_tiles(totals, p.cut_grid, [&](int max_tiles) {
    int total = 0;
    exclusive_sum(thread < num_blocks ? num_parts(own_tiles, max_tiles) : 0, shared, total);
    return total;
  });
}

/// Tells the combine kernel of a cut block, head by head, and returns the slot of its first part.
inline __device__ int record_cut(const BlockListParameters& p, const RowBlock& block, int parts,
                                 BlockListState& shared) {
  const int slot = atomicAdd(&shared.num_slots, parts * p.num_kv_heads);
  const int first = atomicAdd(&shared.num_cuts, p.num_kv_heads);
  const int rows = min(p.shape.block_rows, block.query_len * p.shape.group - block.first_row);
  for (int head = 0; head < p.num_kv_heads; ++head) {
    const int head_slot = slot + head * parts;
    p.cuts[first + head] = {.num_parts = parts,
                            .sequence = block.sequence,
                            .head = head,
                            .query_begin = block.query_begin,
                            .rows = rows,
                            .slots = {.first = head_slot, .rest = head_slot},
                            .first_row = block.first_row};
  }
  return slot;
}

__global__ void __launch_bounds__(kBlockListThreads) quaver_block_list(const __grid_constant__ BlockListParameters p) {
  __shared__ BlockListState shared;
  const auto thread = static_cast<int>(threadIdx.x);
  ptx::launch_dependents();
  ptx::grid_dependency_wait();
  shared.in_bucket[thread] = 0;
  if (thread == 0) {
    shared.tiles = 0;
    shared.longest = 0;
    shared.num_slots = 0;
    shared.num_cuts = 0;
  }
  const int num_blocks = sum_blocks(p, shared);
  const int longest = longest_part(p, num_blocks, shared);
  const auto for_each_part = [&](auto work) {
    for (int i = thread; i < num_blocks; i += kBlockListThreads) {
      const RowBlock block = load_block(p, i);
      const int parts = num_parts(block.num_tiles(), longest);
      work(block, parts);
    }
  };
  for_each_part([&](const RowBlock& block, int parts) {
    for (int part = 0; part < parts; ++part) {
      atomicAdd(&shared.in_bucket[bucket(block_part(block, part, parts, 0), longest)], 1);
    }
  });
  __syncthreads();
  int total = 0;
  const int place = exclusive_sum(shared.in_bucket[thread], shared, total);
  shared.in_bucket[thread] = place;
  __syncthreads();
  for_each_part([&](const RowBlock& block, int parts) {
    const int slot = parts > 1 ? record_cut(p, block, parts, shared) : 0;
    for (int i = 0; i < parts; ++i) {
      const RowBlock part = block_part(block, i, parts, slot);
      p.blocks[atomicAdd(&shared.in_bucket[bucket(part, longest)], 1)] = part;
    }
  });
  __syncthreads();
  if (thread == 0) {
    *p.num_blocks = total;
    *p.num_cuts = shared.num_cuts;
  }
}

}  // namespace quaver::schedule
