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
  const Slot* slot = sample_slot < 0 ? nullptr : p.slots + sample_slot;
  const bool has_logprobs = p.logprobs && slot != nullptr && slot->logprobs >= 0;
#pragma unroll 1
  for (int pass = 0; pass < 2; ++pass) {  // as the model gave them, as they are drawn from
    const bool drawn = pass == 1;
    if (drawn ? slot == nullptr : !has_target && !has_logprobs) continue;
    if (drawn) adjust(chunk, *slot);
    float best = best_of(chunk);
    const float scale = drawn ? slot->rule.scale : kLog2e;
    const uint64_t sum = drawn && slot->rule.greedy ? 0 : sum_of(chunk, scale, weight_exponent(best, scale));
    if (!drawn && has_nan(chunk)) best = NAN;
    const Chunks& chunks = drawn ? p.drawn_chunks : p.model_chunks;
    if (lane_index() == 0) {
      chunks.best[place] = best;
      chunks.sums[place] = sum;
    }
  }
}

}  // namespace quaver::sampling
