// The pass over all logits: best logit and sum of weights of every chunk, one warp a chunk. What comes after it reads
// these, and few chunks once more.
#pragma once

#include "ops/cuda/sampling/chunk.cuh"
#include "ptx/launch.cuh"

namespace quaver::sampling {

inline constexpr int kChunkWarps = 4;

/// blockIdx: (kChunkWarps chunks, row).
__global__ void __launch_bounds__(32 * kChunkWarps) quaver_sampling_chunks(const __grid_constant__ Parameters p) {
  ptx::launch_dependents();
  ptx::grid_dependency_wait();
  const auto row = static_cast<int64_t>(blockIdx.y);
  const int index = static_cast<int>(blockIdx.x) * kChunkWarps + warp_index();
  if (index >= p.chunks) return;
  const int64_t place = row * p.chunks + index;
  // The logits are on their way while the slot is looked up.
  Chunk chunk = load_model_logits(p, row, index);
  const int32_t sample_slot = __ldcg(p.sample_slots + row);
  const bool has_target = p.logprobs && __ldcg(p.target_slots + row) >= 0;
  if (sample_slot < 0 && !has_target) return;
  const Slot* slot = sample_slot < 0 ? nullptr : p.slots + sample_slot;
  if (has_target || (p.logprobs && slot->logprobs >= 0)) {
    const float best = best_of(chunk);
    const uint64_t sum = sum_of(chunk, kLog2e, weight_exponent(best, kLog2e));
    bool any_nan = false;
#pragma unroll
    for (int k = 0; k < kPerLane; ++k) any_nan |= chunk.logits[k] != chunk.logits[k];
    any_nan = __any_sync(~0U, any_nan ? 1 : 0) != 0;
    if (lane_index() == 0) {
      p.model_chunks.best[place] = any_nan ? NAN : best;
      p.model_chunks.sums[place] = sum;
    }
  }
  if (slot == nullptr) return;
  adjust(chunk, *slot);
  const float best = best_of(chunk);
  if (lane_index() == 0) p.drawn_chunks.best[place] = best;
  if (slot->rule.greedy) return;
  const float scale = slot->rule.scale;
  const uint64_t sum = sum_of(chunk, scale, weight_exponent(best, scale));
  if (lane_index() == 0) p.drawn_chunks.sums[place] = sum;
}

}  // namespace quaver::sampling
