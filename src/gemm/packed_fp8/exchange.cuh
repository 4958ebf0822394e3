// The parts of a tile whose K is split over a cluster: part r adds up blocks r * blocks / split … of 8 accumulator
// columns (tokens; rows of a high tile), in the order of the parts. The others send theirs straight into its shared
// memory; nothing goes through global memory, and the CTAs of a cluster run at the same time by definition, so waiting
// for each other is safe.
#pragma once

#include "gemm/packed_fp8/mainloop.cuh"

namespace quaver::packed_fp8 {

/// Blocks of 8 accumulator columns: half-open.
struct BlockRange {
  int begin = 0;
  int end = 0;
  [[nodiscard]] __device__ bool contains(int block) const { return block >= begin && block < end; }
};

template <class Traits>
[[nodiscard]] __device__ __forceinline__ BlockRange part_blocks(int part, int split) {
  return {even_begin(part, split, Traits::kBlocks), even_begin(part + 1, split, Traits::kBlocks)};
}

/// Parts that have blocks: all, unless the tile has fewer blocks than parts.
template <class Traits>
[[nodiscard]] __device__ __forceinline__ int num_receivers(int split) {
  return min(split, Traits::kBlocks);
}

/// Parts besides `part` whose buffers it must find empty before it sends again.
template <class Traits>
[[nodiscard]] __device__ __forceinline__ int other_receivers(int part, int split) {
  return num_receivers<Traits>(split) - (part < num_receivers<Traits>(split) ? 1 : 0);
}

/// Replaces the sums of this part's blocks by those over all parts. `round` counts the tiles of the CTA.
template <class Traits>
__device__ __forceinline__ void exchange(const TileGrid& grid, SharedState<Traits>& shared, float4* buffer,
                                         const MathThread& thread, int rank, int round, bool last,
                                         float (&total)[Traits::kAccumulators]) {
  const int split = grid.split;
  const int part = grid.part_of(rank);
  const int row = grid.row_of(rank);
  constexpr int kBlockSums = 128 * kMathWarpgroups;  // float4 of a block: one a math thread
  const int slot_blocks = exchange_slot_blocks(Traits::kBlocks, split);
  const uint32_t full = ptx::shared_address(&shared.exchange_full[thread.warpgroup]);
  const uint32_t empty = ptx::shared_address(&shared.exchange_empty[thread.warpgroup]);
  const int own_sums = thread.warpgroup * 128 + thread.index();
  const BlockRange mine = part_blocks<Traits>(part, split);
  const auto parity = static_cast<uint32_t>(round & 1);

  if (thread.index() == 0) ptx::mbarrier_arrive_expect(full, (split - 1) * (mine.end - mine.begin) * 128 * 16);
  if (round > 0 && other_receivers<Traits>(part, split) > 0) ptx::mbarrier_wait_cluster(empty, parity ^ 1U);
#pragma unroll 1
  for (int step = 1; step < split; ++step) {  // each part begins with another one
    const int to = part + step < split ? part + step : part + step - split;
    const BlockRange blocks = part_blocks<Traits>(to, split);
    const int sender = part < to ? part : part - 1;
    const int first = (sender * slot_blocks - blocks.begin) * kBlockSums + own_sums;
    const uint32_t remote_buffer =
        ptx::cluster_address(ptx::shared_address(buffer), grid.rank_of(row, to)) + first * 16;
    const uint32_t remote_full = ptx::cluster_address(full, grid.rank_of(row, to));
#pragma unroll
    for (int j = 0; j < Traits::kBlocks; ++j) {
      if (!blocks.contains(j)) continue;
      ptx::store_async(remote_buffer + j * kBlockSums * 16,
                       make_float4(total[4 * j], total[4 * j + 1], total[4 * j + 2], total[4 * j + 3]), remote_full);
    }
  }
  ptx::mbarrier_wait_cluster(full, parity);
  // Parts in their order, this one's own where it belongs: the first becomes the sum, the others are added.
  const float4* const received = buffer + own_sums - mine.begin * kBlockSums;
#pragma unroll
  for (int j = 0; j < Traits::kBlocks; ++j) {
    if (!mine.contains(j)) continue;
    float* const x = total + 4 * j;
    const float4 own = make_float4(x[0], x[1], x[2], x[3]);
    float4 sum = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
#pragma unroll 1
    for (int from = 0, sender = 0; from < split; ++from) {
      const float4 other = from == part ? own : received[(sender * slot_blocks + j) * kBlockSums];
      if (from != part) ++sender;
      sum.x += other.x;
      sum.y += other.y;
      sum.z += other.z;
      sum.w += other.w;
    }
    x[0] = sum.x;
    x[1] = sum.y;
    x[2] = sum.z;
    x[3] = sum.w;
  }
  if (last || part >= num_receivers<Traits>(split)) return;
  thread.sync_warpgroup();  // all threads have read
  if (thread.index() == 0) {
#pragma unroll 1
    for (int to = 0; to < split; ++to) {
      if (to != part) ptx::mbarrier_arrive_remote(ptx::cluster_address(empty, grid.rank_of(row, to)));
    }
  }
}

}  // namespace quaver::packed_fp8
