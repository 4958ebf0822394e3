// START HERE. FP8 GEMM for sm_90a over packed operands: y[M, N] = (x[M, K] * scales) (W[N, K] * scales)^T, every M.
//
//   plan.cpp       shape -> tile grid: rows spread evenly over the CTAs; where they are too few, K split over a cluster
//                  or all chunks in even ranges; pairs of CTAs that share tokens where there are many
//   load.cuh       two loading warps: bulk copies of one chunk of 128 columns into a slot of the ring
//   mainloop.cuh   two math warpgroups: WGMMA chains (weights are the 64-row operand, of high tiles tokens), FP32 sums
//   exchange.cuh, partial_sums.cuh   parts of a tile, through the shared memory of the cluster and through L2
//   epilogue.cuh, geglu_epilogue.cuh, high_tile_epilogue.cuh   scales, BF16, whole lines of the output; the same with
//                  the gate of an MLP; both of high tiles
//
// No CTA waits for one that might not run, and nothing but the output and a workspace is written. README.md beside
// this file has the budget and what was measured.
#pragma once

#include <type_traits>

#include "gemm/packed_fp8/epilogue.cuh"
#include "gemm/packed_fp8/geglu_epilogue.cuh"
#include "gemm/packed_fp8/high_tile_epilogue.cuh"
#include "gemm/packed_fp8/load.cuh"
#include "gemm/packed_fp8/partial_sums.cuh"

namespace quaver::packed_fp8 {

template <class Traits>
__device__ __forceinline__ void multiply_tiles(const Parameters& p, SharedState<Traits>& shared, uint8_t* memory) {
  MathThread thread;
  uint8_t* const staging_memory = memory + p.num_slots * Traits::kSlotBytes;
  uint8_t* const staging = staging_memory + thread.warpgroup * Traits::kStagingBytes;
  auto* const exchange_buffer = reinterpret_cast<float4*>(staging_memory + kMathWarpgroups * Traits::kStagingBytes);
  RingPosition position;
  const int rank = rank_of(p);
  int round = 0;
  for (WorkList<Traits::kRowGranule> list(p.grid, cluster_of(p), p.num_clusters, rank); list.more(); ++round) {
    const Work work = list.take();
    const Tile& tile = work.tile;
    thread.begin_tile<Traits>(tile);
    const TileScales<Traits> scales(p, tile, thread);
    float total[Traits::kAccumulators];
    if constexpr (Traits::kScaling == Scaling::kBlock) {
      accumulate_blocks(p, shared, memory, thread, tile, position, total);
    } else {
      accumulate_outer(p, shared, ptx::shared_address(memory), thread, tile.chunk_end - tile.chunk_begin, position,
                       total);
    }
    BlockRange blocks{0, Traits::kBlocks};
    if constexpr (Traits::kMaySplit) {
      if (p.grid.split > 1) {
        exchange(p.grid, shared, exchange_buffer, thread, rank, round, !list.more(), total);
        blocks = part_blocks<Traits>(p.grid.part_of(rank), p.grid.split);
      }
    }
    if constexpr (Traits::kMayRange) {
      if (work.parts > 1 && !PartialSums<Traits>(p, shared, thread, work).add_up(total)) blocks.end = 0;
    }
    using LowStore = std::conditional_t<Traits::kOutput == Output::kGeglu, GegluStore<Traits>, TileStore<Traits>>;
    using Store = std::conditional_t<Traits::kHigh, HighTileStore<Traits>, LowStore>;
    Store(p, tile, thread, shared, staging).run(scales, blocks, total);
  }
  ptx::tensor_store_wait_read();
}

template <class Traits>
__global__ void __launch_bounds__(kThreads, 1) quaver_gemm_fp8(const __grid_constant__ Parameters p) {
  extern __shared__ __align__(kSharedAlignment) uint8_t memory[];
  __shared__ SharedState<Traits> shared;
  const int warp = __shfl_sync(0xFFFFFFFFU, static_cast<int>(threadIdx.x) / 32, 0);

  const bool clustered = p.grid.cluster() > 1;
  if (threadIdx.x == 0) {
    for (int i = 0; i < p.num_slots; ++i) {
      ptx::mbarrier_init(ptx::shared_address(&shared.full[i]), 1);
      ptx::mbarrier_init(ptx::shared_address(&shared.empty[i]), kMathWarps * p.grid.rows_per_cluster());
    }
    for (int i = 0; i < kMathWarpgroups; ++i) {
      ptx::mbarrier_init(ptx::shared_address(&shared.exchange_full[i]), 1);
      ptx::mbarrier_init(ptx::shared_address(&shared.exchange_empty[i]),
                         max(1, other_receivers<Traits>(p.grid.part_of(rank_of(p)), p.grid.split)));
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (clustered) ptx::cluster_arrive();
  ptx::launch_dependents();

  if (warp >= kMathWarps) {
    ptx::decrease_registers<Traits::kLoadRegisters>();
    const Loader<Traits> loader(p, shared, ptx::held_shared_address(memory));
    if (warp == kMathWarps) loader.load_weights();
    if (clustered) ptx::cluster_wait();
    if (warp == kMathWarps + 1) loader.load_tokens();
  } else {
    ptx::increase_registers<Traits::kMathRegisters>();
    if (clustered) ptx::cluster_wait();
    ptx::grid_dependency_wait();
    multiply_tiles<Traits>(p, shared, memory);
  }
  if (p.grid.pairs) {  // nobody leaves while the other CTA may still signal or write here
    ptx::cluster_arrive();
    ptx::cluster_wait();
  }
}

}  // namespace quaver::packed_fp8
