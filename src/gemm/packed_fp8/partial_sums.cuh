// The parts of a tile that several CTAs compute (tiles.h, ranges): each writes its sums to the workspace and leaves,
// the one that arrives last adds them up in the order of the parts and stores the tile. Nobody waits, so no CTA depends
// on another one to run; whoever is last adds the same numbers in the same order.
#pragma once

#include "gemm/packed_fp8/mainloop.cuh"

namespace quaver::packed_fp8 {

/// Sums of a CTA's part as math threads hold them: [blocks of 8 tokens][math threads], coalesced. A CTA has at most
/// two: the end of the tile that its range begins in, and the beginning of the one that it ends in.
template <class Traits>
[[nodiscard]] __device__ __forceinline__ float4* part_sums(const Parameters& p, const MathThread& thread, int cta,
                                                           bool begins_tile) {
  constexpr int64_t kPartSums = int64_t{Traits::kBlocks} * 128 * kMathWarpgroups;
  return p.partial_sums + (2 * cta + (begins_tile ? 1 : 0)) * kPartSums + thread.warpgroup * 128 + thread.index();
}

/// Replaces the sums of this part by those of the whole tile and says true if all other parts were there before; hands
/// them over otherwise. Each warpgroup does so for its own rows.
template <class Traits>
__device__ __forceinline__ bool add_parts(const Parameters& p, SharedState<Traits>& shared, const MathThread& thread,
                                          const Work& work, float (&total)[Traits::kAccumulators]) {
  constexpr int kBlockSums = 128 * kMathWarpgroups;
  const auto cta = static_cast<int>(blockIdx.x);
  int* const arrivals = p.arrivals + kMathWarpgroups * work.first_cta + thread.warpgroup;
  // Two places: what a slow thread still reads is not overwritten by the next tile.
  const auto all_others_arrived = [&](int own_arrival) {
    int& before = shared.arrivals[thread.warpgroup][own_arrival];
    if (thread.index() == 0) before = ptx::atomic_add_acq_rel(arrivals, own_arrival);
    thread.sync_warpgroup();
    return before == work.parts - 1;
  };
  const int own_part = (cta - work.first_cta) / p.grid.token_tiles();
  // In the registers at its place in the order: the first two parts may be added the other way round.
  const bool in_place = own_part < 2 && all_others_arrived(0);
  if (!in_place) {
    float4* const own = part_sums<Traits>(p, thread, cta, own_part == 0);
#pragma unroll
    for (int j = 0; j < Traits::kBlocks; ++j) {
      own[j * kBlockSums] = make_float4(total[4 * j], total[4 * j + 1], total[4 * j + 2], total[4 * j + 3]);
    }
    thread.sync_warpgroup();
    if (!all_others_arrived(1)) return false;
#pragma unroll
    for (float& x : total) x = 0.0F;
  } else {
#pragma unroll
    for (float& x : total) x += 0.0F;  // as above: a sum that begins with 0 is never -0
  }
  if (thread.index() == 0) *arrivals = 0;  // for the next launch
#pragma unroll 1
  for (int part = 0; part < work.parts; ++part) {
    const int from = work.first_cta + part * p.grid.token_tiles();
    if (in_place && part == own_part) continue;
    const float4* const other = part_sums<Traits>(p, thread, from, part == 0);
#pragma unroll
    for (int j = 0; j < Traits::kBlocks; ++j) {
      const float4 x = __ldcg(other + j * kBlockSums);
      total[4 * j] += x.x;
      total[4 * j + 1] += x.y;
      total[4 * j + 2] += x.z;
      total[4 * j + 3] += x.w;
    }
  }
  return true;
}

}  // namespace quaver::packed_fp8
