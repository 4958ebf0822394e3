// Products of one tile: chains of WGMMA over a few chunks, added up in FP32.
//
// A warpgroup multiplies 64 rows of the tile with all its tokens: the first one its first 64, the second one its last
// 64 (of a tile with fewer rows than 128, both have some, with the same results). Thread (warp q, g = lane / 4, t =
// lane % 4) holds, in registers 4j + 2i + e, row 16q + 8i + g and token 8j + 2t + e. Of a high tile it multiplies 64
// tokens with all rows: token 16q + 8i + g and row 8j + 2t + e.
#pragma once

#include "gemm/packed_fp8/params.h"
#include "gemm/packed_fp8/ring.cuh"
#include "gemm/packed_fp8/traits.h"
#include "ptx/barrier.cuh"
#include "ptx/cluster.cuh"
#include "ptx/wgmma_shared.cuh"

namespace quaver::packed_fp8 {

/// Where a math thread stands.
struct MathThread {
  int warpgroup = __shfl_sync(0xFFFFFFFFU, static_cast<int>(threadIdx.x) / 128, 0);  // uniform: so are descriptors
  int warp = static_cast<int>(threadIdx.x) / 32 % 4;                                 ///< of the warpgroup
  int lane = static_cast<int>(threadIdx.x) % 32;
  int first_group = 0;  ///< of the warpgroup's 64 rows (high tiles: tokens), in groups of 8 inside the tile

  template <class Traits>
  __device__ void begin_tile(const Tile& tile) {
    if constexpr (Traits::kHigh) {
      first_group = warpgroup * (kWarpgroupRows / kGroupRows);
      return;
    }
    first_group = warpgroup == 0 ? 0 : max(0, tile.row_end - tile.row_begin - kWarpgroupRows / kGroupRows);
  }
  [[nodiscard]] __device__ int index() const { return warp * 32 + lane; }  ///< in the warpgroup
  /// Group of 8 rows (high tiles: tokens), inside a tile, of the accumulator registers with i = 0; those with i = 1 are
  /// the next one.
  [[nodiscard]] __device__ int row_group() const { return first_group + warp * 2; }
  __device__ void sync_warpgroup() const { ptx::named_barrier_sync(1 + warpgroup, 128); }
};

/// Gives slots back to whoever loads into them: one lane of every math warp for each CTA that does.
class SlotRelease {
 public:
  __device__ SlotRelease(const TileGrid& grid, uint32_t empty, int lane)
      : pairs_(grid.pairs),
        active_(lane < grid.rows_per_cluster()),
        empty_(grid.pairs ? ptx::cluster_address(empty, (ptx::cluster_rank() & ~1) + lane % 2) : empty) {}

  __device__ void operator()(int slot) const {
    if (!active_) return;
    if (pairs_) {
      ptx::mbarrier_arrive_remote(empty_ + 8 * slot);
    } else {
      ptx::mbarrier_arrive(empty_ + 8 * slot);
    }
  }

 private:
  bool pairs_;
  bool active_;
  uint32_t empty_;
};

/// WGMMA operands of a warpgroup in slot 0 of the ring.
template <class Traits>
struct Operands {
  uint64_t rows;  ///< 64 of them
  uint64_t columns;

  __device__ Operands(uint32_t ring, int first_group)
      : rows(ptx::matrix_descriptor(ring + (Traits::kHigh ? Traits::kRowBytes : 0) + first_group * kGroupBytes,
                                    kCoreBytes, kGroupBytes)),
        columns(ptx::matrix_descriptor(ring + (Traits::kHigh ? 0 : Traits::kRowBytes), kCoreBytes, kGroupBytes)) {}
};

/// Issues the products of one chunk.
template <class Traits>
__device__ __forceinline__ void multiply_chunk(const Operands<Traits>& operands, int slot, bool accumulate,
                                               float (&sums)[Traits::kAccumulators]) {
  const int offset = slot * Traits::kSlotBytes;
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < kChunk / 32; ++step) {  // 32 columns: two core matrices
    ptx::wgmma(sums, ptx::advance_descriptor(operands.rows, offset + step * 2 * kCoreBytes),
               ptx::advance_descriptor(operands.columns, offset + step * 2 * kCoreBytes), accumulate || step > 0);
  }
  ptx::wgmma_commit();
}

/// Adds the products of `chunks` chunks to nothing: total = sum.
template <class Traits>
__device__ __forceinline__ void accumulate_outer(const Parameters& p, const SharedState<Traits>& shared, uint32_t ring,
                                                 const MathThread& thread, int chunks, RingPosition& position,
                                                 float (&total)[Traits::kAccumulators]) {
  const uint32_t full = ptx::held_shared_address(shared.full);
  const SlotRelease release(p.grid, ptx::shared_address(shared.empty), thread.lane);
  const Operands<Traits> operands(ring, thread.first_group);
  float sums[Traits::kAccumulators];
#pragma unroll
  for (int i = 0; i < Traits::kAccumulators; ++i) total[i] = sums[i] = 0.0F;  // defined, or ptxas serialises the chains
  for (int chunk = 0; chunk < chunks;) {
    const int chain_end = min(chunk + Traits::kPromotedChunks, chunks);
    bool running = false;  // the chunk before is still being multiplied
    RingPosition before = position;
    for (int i = chunk; i < chain_end; ++i) {
      ptx::mbarrier_wait(full + 8 * position.slot, position.parity);
      multiply_chunk<Traits>(operands, position.slot, i > chunk, sums);
      if (running) {
        ptx::wgmma_wait<1>();
        release(before.slot);
      }
      before = position;
      position = position.next(p.num_slots);
      // One chunk keeps running while the next is issued, but only if that has arrived: else its slot is more use
      // empty.
      if (i + 1 < chain_end) {
        running = ptx::mbarrier_test_wait(full + 8 * position.slot, position.parity);
        if (!running) {
          ptx::wgmma_wait<0>();
          release(before.slot);
        }
      }
    }
    ptx::wgmma_wait<0>();
    release(before.slot);
    chunk = chain_end;
#pragma unroll
    for (int i = 0; i < Traits::kAccumulators; ++i) total[i] += sums[i];
  }
}

/// The same with block scales: every chunk is scaled on its way into the sum.
template <class Traits>
__device__ __forceinline__ void accumulate_blocks(const Parameters& p, const SharedState<Traits>& shared,
                                                  const uint8_t* ring_memory, const MathThread& thread,
                                                  const Tile& tile, RingPosition& position,
                                                  float (&total)[Traits::kAccumulators]) {
  const uint32_t full = ptx::held_shared_address(shared.full);
  const SlotRelease release(p.grid, ptx::shared_address(shared.empty), thread.lane);
  const Operands<Traits> operands(ptx::shared_address(ring_memory), thread.first_group);
  const int last_block = static_cast<int>(ceil_divide(p.n, kScaleBlock)) - 1;
  const float* row_scales[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int block = min((tile.row_begin + thread.row_group() + i) / (kScaleBlock / kGroupRows), last_block);
    row_scales[i] = p.weight_scales + int64_t{block} * p.grid.chunks;
  }
#pragma unroll
  for (float& x : total) x = 0.0F;
  for (int chunk = tile.chunk_begin; chunk < tile.chunk_end; ++chunk) {
    float sums[Traits::kAccumulators];
    ptx::mbarrier_wait(full + 8 * position.slot, position.parity);
    const int slot_offset = position.slot * Traits::kSlotBytes;
    multiply_chunk<Traits>(operands, position.slot, false, sums);
    const float row_scale[2] = {row_scales[0][chunk], row_scales[1][chunk]};
    const auto* token_scales =
        reinterpret_cast<const float2*>(ring_memory + slot_offset + Traits::kRowBytes + Traits::kTokenBytes);
    ptx::wgmma_wait<0>();
#pragma unroll
    for (int j = 0; j < Traits::kBlocks; ++j) {
      const float2 scale = token_scales[4 * j + thread.lane % 4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float* x = total + 4 * j + 2 * i;
        x[0] = fmaf(sums[4 * j + 2 * i], scale.x * row_scale[i], x[0]);
        x[1] = fmaf(sums[4 * j + 2 * i + 1], scale.y * row_scale[i], x[1]);
      }
    }
    __syncwarp();  // every lane has read its scales
    release(position.slot);
    position = position.next(p.num_slots);
  }
}

}  // namespace quaver::packed_fp8
