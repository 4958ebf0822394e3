// The end of an item: an uncut one is normalised and written; a part of a cut one goes to the workspace, and the CTA
// that writes the last part adds them all up in their order.
#pragma once

#include "attention/combine/merge.cuh"
#include "attention/decode_fp8/mainloop.cuh"

namespace quaver::decode_fp8 {

/// Barrier of all consumer threads.
template <class Traits>
__device__ __forceinline__ void sync_consumers() {
  ptx::named_barrier_sync(1, Traits::kConsumers);
}

template <class Traits>
__device__ __forceinline__ void write_rows(const Parameters& p, const WorkItem& item, int row,
                                           const RowState<Traits>& state) {
  const auto warpgroup = static_cast<int>(threadIdx.x) / 128;
  const auto t = static_cast<int>(threadIdx.x) % 4;
  const int64_t token = item.query_begin + tiles::row_token(row, p.shape.group);
  const int query_head = item.head * p.shape.group + tiles::row_head(row, p.shape.group);
  const combine::RowResult result =
      combine::finish_row(p.output, state.maximum, state.sum, item.sequence, item.head, query_head);
  const int64_t offset = token * p.output.out_strides.token + query_head * p.output.out_strides.head +
                         warpgroup * Traits::kValueColumns + 2 * t;
#pragma unroll
  for (int j = 0; j < Traits::kValueColumns / 8; ++j) {
    combine::write_pair(p.output, offset + 8 * j, state.out[2 * j] * result.scale, state.out[2 * j + 1] * result.scale);
  }
  if (warpgroup == 0 && t == 0 && p.output.lse != nullptr) {
    p.output.lse[token * p.output.lse_strides.token + query_head * p.output.lse_strides.head] = result.lse;
  }
}

template <class Traits>
__device__ __forceinline__ void write_part(const Parameters& p, const WorkItem& item, int row,
                                           const RowState<Traits>& state) {
  const auto warpgroup = static_cast<int>(threadIdx.x) / 128;
  const auto t = static_cast<int>(threadIdx.x) % 4;
  const schedule::PartSlots slots{.first = item.first_slot, .rest = item.rest_slot};
  const int64_t line = static_cast<int64_t>(slots.slot(item.part)) * p.partials.max_rows + row;
  float* out = p.partials.out + line * Traits::kHeadDim + warpgroup * Traits::kValueColumns + 2 * t;
#pragma unroll
  for (int j = 0; j < Traits::kValueColumns / 8; ++j) {
    __stcg(reinterpret_cast<float2*>(out + 8 * j), make_float2(state.out[2 * j], state.out[2 * j + 1]));
  }
  if (warpgroup == 0 && t == 0) __stcg(p.partials.max_sum + line, make_float2(state.maximum, state.sum));
}

/// Writes O and LSE of an uncut item, or a part of a cut one.
template <class Traits>
__device__ __forceinline__ void write_item(const Parameters& p, const WorkItem& item, int row, bool valid,
                                           RowState<Traits>& state) {
  state.sum += __shfl_xor_sync(kAllLanes, state.sum, 1);
  state.sum += __shfl_xor_sync(kAllLanes, state.sum, 2);
  if (!valid) return;
  if (item.num_parts == 1) {
    write_rows<Traits>(p, item, row, state);
  } else {
    write_part<Traits>(p, item, row, state);
  }
}

/// Do idle warps finish cut items?
template <class Traits>
__device__ __forceinline__ bool has_finishers(const Parameters& p) {
  return Traits::kFinishers > 0 && p.combine_in_kernel;
}

__device__ __forceinline__ bool combined_here(const Parameters& p, const WorkItem& item) {
  return item.num_parts > 1 && p.combine_in_kernel;
}

/// Counts a part that is written; true for the last one of its item.
__device__ __forceinline__ bool count_part(const Parameters& p, int first_slot, int num_parts) {
  int* arrived = p.partials.arrived + first_slot;
  const bool last = ptx::atomic_add_acq_rel(arrived, 1) == num_parts - 1;
  if (last) *arrived = 0;
  return last;
}

__device__ __forceinline__ combine::CutItem cut_item(const WorkItem& item) {
  return {.slots = {.first = item.first_slot, .rest = item.rest_slot},
          .num_parts = item.num_parts,
          .sequence = item.sequence,
          .head = item.head,
          .query_begin = item.query_begin,
          .rows = item.rows};
}

/// All consumers: counts the part, and adds all parts up if it was the last.
template <class Traits>
__device__ __forceinline__ void combine_if_last(const Parameters& p, const WorkItem& item,
                                                SharedState<Traits>& shared) {
  if (!combined_here(p, item)) return;
  sync_consumers<Traits>();
  if (threadIdx.x == 0) shared.is_last_part = count_part(p, item.first_slot, item.num_parts) ? 1 : 0;
  sync_consumers<Traits>();
  if (shared.is_last_part == 0) return;
  const combine::CutItem cut = cut_item(item);
#pragma unroll 1
  for (int e = static_cast<int>(threadIdx.x) * 4; e < cut.rows * Traits::kHeadDim; e += Traits::kConsumers * 4) {
    combine::merge_parts<Traits::kHeadDim, 12, Traits::kPartsAtOnce>(p.partials, p.output, cut, e);
  }
}

/// The finisher warps count the parts that the consumers wrote and add up those of complete items. The CTA's last item
/// is left to the consumers, who have nothing else to do then.
template <class Traits>
__device__ __forceinline__ void finish_parts(const Parameters& p, SharedState<Traits>& shared) {
  const int thread = static_cast<int>(threadIdx.x) - (Traits::kThreads - Traits::kFinishers);
  const auto sync = [] { ptx::named_barrier_sync(4, Traits::kFinishers); };
  const auto wait = [](uint64_t& barrier, uint32_t parity) {  // nothing here is urgent: leave the issue slots to others
    while (!ptx::mbarrier_try_wait(ptx::shared_address(&barrier), parity)) __nanosleep(500);
  };
  RingPosition<kItemSlots> slot;
  wait(shared.item_full[0], 0);
  while (shared.items[slot.slot].rows >= 0) {
    const RingPosition<kItemSlots> own = slot;
    slot.advance();
    wait(shared.item_full[slot.slot], slot.parity);
    if (shared.items[slot.slot].rows < 0) return;
    wait(shared.item_done[own.slot], own.parity);
    const combine::CutItem cut = cut_item(shared.items[own.slot]);
    const bool cut_here = cut.num_parts > 1;
    if (cut_here && thread == 0) shared.finish_is_last_part = count_part(p, cut.slots.first, cut.num_parts) ? 1 : 0;
    sync();
    if (thread == 0) ptx::mbarrier_arrive(ptx::shared_address(&shared.item_empty[own.slot]));
    if (!cut_here) continue;
    if (shared.finish_is_last_part != 0) {
#pragma unroll 1
      for (int e = thread * 4; e < cut.rows * Traits::kHeadDim; e += Traits::kFinishers * 4) {
        combine::merge_parts<Traits::kHeadDim, 6, 6>(p.partials, p.output, cut, e);
      }
    }
    sync();  // before the flag is written again
  }
}

}  // namespace quaver::decode_fp8
