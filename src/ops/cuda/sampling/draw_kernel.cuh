// From the chunks' best logits and sums to the token: the best one, or the one where the draw falls. Adds the token to
// its slot's past.
#pragma once

#include "ops/cuda/sampling/chunk.cuh"
#include "ptx/launch.cuh"

namespace quaver::sampling {

inline constexpr int kDrawWarps = 8;

struct DrawShared {
  WarpResults<kDrawWarps> results;
  Place place;
};

/// The lowest id with the logit `best` in a chunk, by all lanes of a warp.
__device__ inline int32_t lowest_best(const Chunk& chunk, float best) {
  uint32_t lowest = 0xFFFFFFFFU;
#pragma unroll
  for (int k = kPerLane - 1; k >= 0; --k) {
    if (chunk.logits[k] == best) lowest = static_cast<uint32_t>(chunk.token(k));
  }
  return static_cast<int32_t>(__reduce_min_sync(~0U, lowest));
}

__device__ inline void add_token(Slot& slot, int32_t token) {
  slot.last_token = token;
  ++slot.num_tokens;
  ++slot.num_generated;
  if (slot.counts && (slot.marks[token] & kCountMask) < kCountMask) ++slot.marks[token];
}

/// blockIdx.x: row.
__global__ void __launch_bounds__(32 * kDrawWarps) quaver_sampling_draw(const __grid_constant__ Parameters p) {
  __shared__ DrawShared shared;
  ptx::launch_dependents();
  ptx::grid_dependency_wait();
  const auto row = static_cast<int64_t>(blockIdx.x);
  const int32_t slot_index = __ldcg(p.sample_slots + row);
  if (slot_index < 0) return;
  Slot& slot = p.slots[slot_index];
  const DrawRule rule = slot.rule;
  const float* bests = p.drawn_chunks.best + row * p.chunks;
  const uint64_t* sums = p.drawn_chunks.sums + row * p.chunks;

  const RowBest row_best = best_of_row(bests, p.chunks, shared.results);
  const float best = row_best.logit;
  const bool has_logprobs = p.logprobs && slot.logprobs >= 0;
  DrawStatus status = best > -INFINITY ? DrawStatus::kOk : DrawStatus::kNoNumber;
  if (has_logprobs && status == DrawStatus::kOk) {
    const RowBest of_model = best_of_row(p.model_chunks.best + row * p.chunks, p.chunks, shared.results);
    if (!has_exponent(of_model.logit, kLog2e)) status = DrawStatus::kNotFinite;
  }
  if (status != DrawStatus::kOk) {
    if (threadIdx.x == 0) p.drawn[row] = {.token = -1, .status = status, .has_logprobs = false};
    return;
  }

  const bool takes_best = rule.greedy || !has_exponent(best, rule.scale);
  Place place{.item = row_best.chunk, .left = 0};
  const int32_t exponent = weight_exponent(best, rule.scale);
  if (!takes_best) {
    const auto units = [&](int i) {
      return chunk_units(__ldcg(sums + i), weight_exponent(__ldcg(bests + i), rule.scale), exponent);
    };
    const double uniform = uniform_draw(rule.seed, slot.num_tokens);
    place = locate(
        p.chunks, units, [&](uint64_t total) { return drawn_unit(uniform, total); }, shared.results, shared.place);
  }
  if (warp_index() != 0) return;
  const Chunk chunk = load_drawn_logits(p, row, place.item, slot);
  int32_t token = -1;
  if (takes_best) {
    token = lowest_best(chunk, best);
  } else {
    const int32_t reference = weight_exponent(__ldcg(bests + place.item), rule.scale);
    const uint64_t kept = rule.cuts ? p.kept[row] : 0;
    token = locate_token(chunk, place.left << static_cast<uint32_t>(exponent - reference), [&](int k) {
      const bool in = order_of(chunk.logits[k], chunk.token(k)) >= kept;
      return in ? weight_units(chunk.logits[k], rule.scale, reference) : 0;
    });
  }
  if (lane_index() == 0) {
    p.drawn[row] = {.token = token, .status = DrawStatus::kOk, .has_logprobs = has_logprobs};
    add_token(slot, token);
  }
}

}  // namespace quaver::sampling
