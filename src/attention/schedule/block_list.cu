// One CTA makes the list: a running sum of blocks over the sequences, then a counting sort of the blocks by their
// number of KV tiles.
#include "attention/schedule/block_list.h"

#include "ptx/launch.cuh"

namespace quaver::schedule {
namespace {

constexpr int kThreads = 1024;
constexpr unsigned kAllLanes = 0xFFFFFFFFU;

struct KernelParameters {
  BlockShape shape{};
  SequenceLengths lengths{};
  int* blocks_before = nullptr;
  RowBlock* blocks = nullptr;
  int* num_blocks = nullptr;
  int max_blocks = 0;
};

struct SharedState {
  int warp_sums[kThreads / 32];
  int longest;              ///< KV tiles
  int in_bucket[kThreads];  ///< blocks, then the place of the bucket's next block
};

/// Sum of `value` over the threads before this one; `total` over all threads.
__device__ int exclusive_sum(int value, SharedState& shared, int& total) {
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
  for (int w = 0; w < kThreads / 32; ++w) {
    if (w < warp) exclusive += shared.warp_sums[w];
    total += shared.warp_sums[w];
  }
  __syncthreads();
  return exclusive;
}

__device__ int query_len(const KernelParameters& p, int sequence) {
  return p.lengths.query_start[sequence + 1] - p.lengths.query_start[sequence];
}

__device__ int sum_blocks(const KernelParameters& p, SharedState& shared) {
  int before = 0;
  for (int base = 0; base < p.lengths.num_sequences; base += kThreads) {
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

__device__ RowBlock load_block(const KernelParameters& p, int index) {
  int low = 0;
  int high = p.lengths.num_sequences;
  while (high - low > 1) {  // the last sequence with blocks_before <= index
    const int middle = (low + high) / 2;
    (p.blocks_before[middle] <= index ? low : high) = middle;
  }
  return row_block(p.shape, low, p.lengths.query_start[low], query_len(p, low), p.lengths.seq_lens[low],
                   index - p.blocks_before[low]);
}

/// Bucket 0 has the longest blocks.
__device__ int bucket(const RowBlock& block, int longest) {
  const int tiles = block.tile_end - block.tile_begin;
  return static_cast<int>(int64_t{longest - tiles} * (kThreads - 1) / max(longest, 1));
}

__global__ void __launch_bounds__(kThreads) quaver_block_list(const __grid_constant__ KernelParameters p) {
  __shared__ SharedState shared;
  const auto thread = static_cast<int>(threadIdx.x);
  ptx::launch_dependents();
  ptx::grid_dependency_wait();
  shared.in_bucket[thread] = 0;
  if (thread == 0) shared.longest = 0;
  const int num_blocks = sum_blocks(p, shared);
  for (int i = thread; i < num_blocks; i += kThreads) {
    const RowBlock block = load_block(p, i);
    atomicMax(&shared.longest, block.tile_end - block.tile_begin);
  }
  __syncthreads();
  for (int i = thread; i < num_blocks; i += kThreads) {
    atomicAdd(&shared.in_bucket[bucket(load_block(p, i), shared.longest)], 1);
  }
  __syncthreads();
  int total = 0;
  const int place = exclusive_sum(shared.in_bucket[thread], shared, total);
  shared.in_bucket[thread] = place;
  __syncthreads();
  for (int i = thread; i < num_blocks; i += kThreads) {
    const RowBlock block = load_block(p, i);
    p.blocks[atomicAdd(&shared.in_bucket[bucket(block, shared.longest)], 1)] = block;
  }
  if (thread == 0) *p.num_blocks = num_blocks;
}

}  // namespace

BlockList::BlockList(const BlockShape& shape, int64_t max_sequences, int max_query_len)
    : shape_(shape),
      blocks_before_(max_sequences + 1),
      blocks_(max_sequences * num_row_blocks(shape, max_query_len)),
      counters_(2) {}

void BlockList::schedule(const SequenceLengths& lengths, cudaStream_t stream) {
  check(lengths.num_sequences >= 0 && lengths.num_sequences < blocks_before_.size(), "num_sequences ",
        lengths.num_sequences, ": expected 0 ... ", blocks_before_.size() - 1);
  launch_programmatic(quaver_block_list, dim3(1), kThreads, 0, stream,
                      KernelParameters{.shape = shape_,
                                       .lengths = lengths,
                                       .blocks_before = blocks_before_.data(),
                                       .blocks = blocks_.data(),
                                       .num_blocks = counters_.data(),
                                       .max_blocks = static_cast<int>(blocks_.size())});
}

BlockListView BlockList::view() const {
  return {.blocks = blocks_.data(), .num_blocks = counters_.data(), .ticket = counters_.data() + 1};
}

}  // namespace quaver::schedule
