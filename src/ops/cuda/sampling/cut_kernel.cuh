// Top-k, top-p, min-p: what they leave of a row, and the sums of its chunks over that, in place of those over all
// tokens. The draw does not see a difference.
#pragma once

#include "ops/cuda/sampling/cut_search.cuh"
#include "ptx/launch.cuh"

namespace quaver::sampling {

/// blockIdx.x: row.
__global__ void __launch_bounds__(kCutThreads, 1) quaver_sampling_cut(const __grid_constant__ Parameters p) {
  extern __shared__ __align__(128) uint8_t memory[];
  ptx::launch_dependents();
  ptx::grid_dependency_wait();
  const auto row = static_cast<int64_t>(blockIdx.x);
  const int32_t slot_index = __ldcg(p.sample_slots + row);
  if (slot_index < 0) return;
  const Slot& slot = p.slots[slot_index];
  const DrawRule rule = slot.rule;
  if (!rule.cuts) return;
  CutSearch search(p, row, slot, *reinterpret_cast<CutShared*>(memory));
  if (!has_exponent(search.best(), rule.scale)) return;

  const uint64_t floor = uint64_t{order_of(least_logit(search.best(), rule.reach))} << 32U;
  Cut cut;
#pragma unroll 1
  for (int step = 0; step < 2; ++step) {  // top-k, then top-p of what it left
    const bool by_tokens = step == 0;
    if (by_tokens ? rule.top_k == 0 : rule.top_p >= 1.0) continue;
    Goal goal;
    if (by_tokens) {
      goal.tokens = static_cast<uint64_t>(rule.top_k);
    } else {
      goal.units = units_of_top_p(rule.top_p, rule.top_k > 0 ? cut.units : search.total());
    }
    const Cut found = search.find(goal, cut.order > floor ? cut.order : floor);
    cut = {.order = found.order != 0 ? found.order : cut.order, .units = found.units};
  }
  const uint64_t least = uint64_t{order_of(least_logit(search.best(), rule.min_p_reach))} << 32U;
  const uint64_t kept = cut.order > least ? cut.order : least;
  search.sum_kept(kept);
  if (threadIdx.x == 0) p.kept[row] = kept;
}

}  // namespace quaver::sampling
