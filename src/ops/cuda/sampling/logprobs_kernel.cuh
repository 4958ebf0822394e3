// Log-probability and rank of a token and the most probable tokens, of the logits as the model gave them.
#pragma once

#include "ops/cuda/sampling/chunk.cuh"
#include "ptx/launch.cuh"

namespace quaver::sampling {

inline constexpr int kLogprobWarps = 8;

struct LogprobShared {
  WarpResults<kLogprobWarps> results;
  uint64_t next[kMostChunks];  ///< bound for the order of a chunk's tokens that are not listed yet
};

/// Lists the `count` best tokens, by one warp: the chunk with the best token left is read again for every token.
__device__ inline void list_best(const Parameters& p, int64_t row, int count, uint64_t* next, TokenLogit* top) {
  for (int listed = 0; listed < count; ++listed) {
    uint64_t bound = 0;
    int from = 0;
    for (int i = lane_index(); i < p.chunks; i += 32) {
      if (next[i] > bound) {
        bound = next[i];
        from = i;
      }
    }
    const uint64_t most = warp_max(bound);
    from = __shfl_sync(~0U, from, __ffs(static_cast<int>(__ballot_sync(~0U, bound == most))) - 1);
    const Chunk chunk = load_model_logits(p, row, from);
    // The bound of a chunk that nothing was taken from names its first id: with the logit of its best token it is at
    // least that token's order, and above that of every equal token of a later chunk.
    uint64_t best = 0;
    uint64_t second = 0;
#pragma unroll
    for (int k = 0; k < kPerLane; ++k) {
      const uint64_t order = order_of(chunk.logits[k], chunk.token(k));
      if (order > most || chunk.token(k) >= p.vocab) continue;
      second = order > best ? best : order > second ? order : second;
      best = order > best ? order : best;
    }
    const uint64_t taken = warp_max(best);
    const uint64_t left = warp_max(best == taken ? second : best);
    if (lane_index() == 0) {
      top[listed] = {.id = id_of(taken), .logit = logit_of(static_cast<uint32_t>(taken >> 32U))};
      next[from] = left;
    }
    __syncwarp();
  }
}

/// blockIdx: (row, the drawn token or the target).
__global__ void __launch_bounds__(32 * kLogprobWarps) quaver_sampling_logprobs(const __grid_constant__ Parameters p) {
  __shared__ LogprobShared shared;
  ptx::launch_dependents();
  ptx::grid_dependency_wait();
  const auto row = static_cast<int64_t>(blockIdx.x);
  const bool of_target = blockIdx.y != 0;
  const int32_t slot = __ldcg((of_target ? p.target_slots : p.sample_slots) + row);
  if (slot < 0) return;
  const int wanted = of_target ? p.slots[slot].prompt_logprobs : p.slots[slot].logprobs;
  if (wanted < 0 && !of_target) return;
  DrawnLogprobs& result = (of_target ? p.target_logprobs : p.sample_logprobs)[row];
  const Drawn drawn = of_target ? Drawn{.token = __ldcg(p.targets + row)} : p.drawn[row];

  const float* bests = p.model_chunks.best + row * p.chunks;
  const float best = best_of_row(bests, p.chunks, shared.results).logit;
  if (drawn.status != DrawStatus::kOk || !has_exponent(best, kLog2e)) {
    if (threadIdx.x == 0) result.status = DrawStatus::kNotFinite;
    return;
  }

  const int32_t exponent = weight_exponent(best, kLog2e);
  const float logit = load_model_logit(p, row, drawn.token);
  uint64_t units = 0;
  for (int i = static_cast<int>(threadIdx.x); i < p.chunks; i += 32 * kLogprobWarps) {
    const float chunk_best = __ldcg(bests + i);
    units +=
        chunk_units(__ldcg(p.model_chunks.sums + row * p.chunks + i), weight_exponent(chunk_best, kLog2e), exponent);
    shared.next[i] = order_of(chunk_best, i * kChunkTokens);
  }
  uint64_t better = 0;
  for (int i = warp_index(); i < p.chunks; i += kLogprobWarps) {
    if (!(__ldcg(bests + i) > logit)) continue;
    const Chunk chunk = load_model_logits(p, row, i);
#pragma unroll
    for (int k = 0; k < kPerLane; ++k) better += chunk.logits[k] > logit ? 1 : 0;
  }
  const uint64_t sum = block_scan(units, shared.results).total;
  const uint64_t rank = block_scan(better, shared.results).total + 1;
  if (warp_index() != 0) return;
  const int count = min(min(wanted, kMostTopLogprobs), p.vocab);
  if (lane_index() == 0) {
    result.status = DrawStatus::kOk;
    result.token = drawn.token;
    result.logit = logit;
    result.rank = static_cast<int32_t>(rank);
    result.sum = {.sum = sum, .best = best};
    result.num_top = max(count, 0);
  }
  list_best(p, row, count, shared.next, result.top);
}

}  // namespace quaver::sampling
