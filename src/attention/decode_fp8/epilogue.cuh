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

/// Counts this part; in the CTA that counted the last one all consumers add the parts up.
template <class Traits>
__device__ __forceinline__ void combine_if_last(const Parameters& p, const WorkItem& item,
                                                SharedState<Traits>& shared) {
  sync_consumers<Traits>();
  if (threadIdx.x == 0) {
    int* arrived = p.partials.arrived + item.first_slot;
    const bool last = ptx::atomic_add_acq_rel(arrived, 1) == item.num_parts - 1;
    if (last) *arrived = 0;
    shared.is_last_part = last ? 1 : 0;
  }
  sync_consumers<Traits>();
  if (shared.is_last_part == 0) return;
  const combine::CutItem cut{.slots = {.first = item.first_slot, .rest = item.rest_slot},
                             .num_parts = item.num_parts,
                             .sequence = item.sequence,
                             .head = item.head,
                             .query_begin = item.query_begin,
                             .rows = item.rows};
#pragma unroll 1
  for (int e = static_cast<int>(threadIdx.x) * 4; e < cut.rows * Traits::kHeadDim; e += Traits::kConsumers * 4) {
    combine::merge_parts<Traits::kHeadDim>(p.partials, p.output, cut, e);
  }
}

template <class Traits>
__device__ __forceinline__ void finish_item(const Parameters& p, const WorkItem& item, int row, bool valid,
                                            RowState<Traits>& state, SharedState<Traits>& shared) {
  state.sum += __shfl_xor_sync(kAllLanes, state.sum, 1);
  state.sum += __shfl_xor_sync(kAllLanes, state.sum, 2);
  if (item.num_parts == 1) {
    if (valid) write_rows<Traits>(p, item, row, state);
    return;
  }
  if (valid) write_part<Traits>(p, item, row, state);
  if (p.combine_in_kernel) combine_if_last<Traits>(p, item, shared);
}

}  // namespace quaver::decode_fp8
