// START HERE. FP8 decode attention for sm_90a over the paged E4M3 cache: up to 32 query rows (GQA group * q_len) a kv
// head.
//
//   schedule (once a step)  work list: every CTA of this persistent grid gets an even share of all KV tiles
//   producer warp           load.cuh: items of the share -> queue; K and V tiles -> ring, by bulk copies
//   consumer warpgroups     up to 8 rows: few_rows.cuh; more: query.cuh: Q as hi + lo/16; mainloop.cuh: S, softmax,
//                           P V; epilogue.cuh: O, LSE or a part
//   finisher warps          epilogue.cuh: count parts of cut items and add up complete ones, off the consumers' path
//   combine                 last part's CTA, or combine/ as a second kernel where rows * head_dim is large
//
// README.md beside this file has the cycle budget and what was measured.
#pragma once

#include "attention/decode_fp8/epilogue.cuh"
#include "attention/decode_fp8/few_rows.cuh"
#include "ptx/launch.cuh"

namespace quaver::decode_fp8 {

/// Queries, keys and scale of the row that this thread holds.
template <class Traits>
__device__ __forceinline__ QueryRow make_row(const Parameters& p, const WorkItem& item, int row, bool active,
                                             float query_scale) {
  const bool valid = row < item.rows;
  const int token = valid ? tiles::row_token(row, p.shape.group) : 0;
  const tiles::KeyRange own = tiles::visible_keys(p.shape.mask, item.kv_len, item.query_len, token);
  const tiles::KeyRange all = tiles::visible_keys(p.shape.mask, item.kv_len, item.query_len, 0, item.query_len).all;
  float scale = p.scale_log2 * query_scale;
  if (p.k_scale != nullptr) scale *= p.k_scale[item.head];
  scale *= p.q_descale.at(item.sequence, item.head) * p.k_descale.at(item.sequence, item.head);
  return {.valid = valid,
          .active = active,
          .scale = valid ? scale : 0.0F,
          .first_key = static_cast<int>(own.first),
          .last_key = static_cast<int>(own.last),
          .all_first = static_cast<int>(all.first),
          .all_last = static_cast<int>(all.last)};
}

template <class Traits>
__device__ __forceinline__ void consume(const Parameters& p, SharedState<Traits>& shared, uint8_t* query,
                                        uint8_t* ring) {
  const auto lane = static_cast<int>(threadIdx.x) % 32;
  const auto warp = static_cast<int>(threadIdx.x) / 32 % 4;
  // CTAs of one SM give their few rows to different warps: 0.5 % at two CTAs.
  const auto rotation = static_cast<int>(blockIdx.x * Traits::kCtasPerSm / gridDim.x);
  const int warp_row = (warp - rotation + 4) % 4 * 8;
  const int row_index = warp_row + lane / 4;
  RingPosition<Traits::kRingSlots> tile_slot;
  RingPosition<kItemSlots> item_slot;
  while (
      true) {  // the wait is inside: the compiler then computes the loop's invariants ahead of it (0.6 us at kv 1,024)
    ptx::mbarrier_wait(ptx::shared_address(&shared.item_full[item_slot.slot]), item_slot.parity);
    const WorkItem& item = shared.items[item_slot.slot];
    if (item.rows < 0) return;
    if constexpr (Traits::kFewRows) {
      few_rows::load_query<Traits>(p, item, shared, query);
      sync_consumers<Traits>();
      few_rows::QueryRows<Traits> rows;
      few_rows::make_rows<Traits>(p, item, shared, rows);
      few_rows::RowState<Traits> state;
      few_rows::attend<Traits>(p, item, rows, shared, ptx::shared_address(query),
                               query + Traits::kColumns * Traits::kHeadDim, ring, tile_slot, state);
      few_rows::write_item<Traits>(p, item, shared, state);
    } else {
      load_query<Traits>(p, item, shared, query, rotation);
      sync_consumers<Traits>();
      const QueryRow row = make_row<Traits>(p, item, row_index, warp_row < item.rows, shared.query_scale[row_index]);
      RowState<Traits> state;
      attend<Traits>(p, item, row, shared, ptx::shared_address(query), ring, tile_slot, state);
      write_item<Traits>(p, item, row_index, row.valid, state);
    }
    if (has_finishers<Traits>(p)) {
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(ptx::shared_address(&shared.item_done[item_slot.slot]));
      item_slot.advance();
      ptx::mbarrier_wait(ptx::shared_address(&shared.item_full[item_slot.slot]), item_slot.parity);
      if (shared.items[item_slot.slot].rows < 0) return combine_if_last<Traits>(p, item, shared);
      sync_consumers<Traits>();  // every warp is done with Q and its scales
    } else {
      combine_if_last<Traits>(p, item, shared);
      sync_consumers<Traits>();  // … and with the item
      if (lane == 0) ptx::mbarrier_arrive(ptx::shared_address(&shared.item_empty[item_slot.slot]));
      item_slot.advance();
    }
  }
}

/// Reads something of every 64 bytes of the parameters: a miss in the constant cache costs some 0.3 us, here beside the
/// end of the kernel in front. The result is of no use, but must be stored for the loads to stay.
__device__ __forceinline__ uint64_t warm_parameters(const Parameters& p) {
  const auto word = [](const void* pointer) { return reinterpret_cast<uint64_t>(pointer); };
  return word(p.q) ^ word(p.block_table) ^ word(p.k_scale) ^ word(p.k_descale.values) ^ word(p.work.records) ^
         word(p.work.ticket) ^ word(p.partials.out) ^ word(p.partials.arrived) ^ word(p.output.out) ^
         word(p.output.lse) ^ word(p.output.v_descale.values) ^ static_cast<uint64_t>(p.shape.mask.window);
}

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kCtasPerSm)
    quaver_decode_fp8(const __grid_constant__ Parameters p) {
  extern __shared__ __align__(1024) uint8_t tiles_memory[];
  __shared__ SharedState<Traits> shared;
  uint8_t* query = tiles_memory;
  uint8_t* ring = tiles_memory + Traits::kQueryBytes;
  const auto warp = static_cast<int>(threadIdx.x) / 32;
  const auto lane = static_cast<int>(threadIdx.x) % 32;
  constexpr int kProducerWarp = Traits::kConsumers / 32;

  ptx::launch_dependents();
  if (warp == kProducerWarp) {
    if (lane < Traits::kRingSlots) {
      ptx::mbarrier_init(ptx::shared_address(&shared.tile_full[lane]), 1);
      ptx::mbarrier_init(ptx::shared_address(&shared.tile_empty[lane]), kProducerWarp);
    }
    if (lane < kItemSlots) {
      ptx::mbarrier_init(ptx::shared_address(&shared.item_full[lane]), 1);
      ptx::mbarrier_init(ptx::shared_address(&shared.item_done[lane]), kProducerWarp);
      ptx::mbarrier_init(ptx::shared_address(&shared.item_empty[lane]), has_finishers<Traits>(p) ? 1 : kProducerWarp);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x == 0) static_cast<volatile uint64_t&>(shared.warm) = warm_parameters(p);
  if (!loads_early<Traits>(p) || warp != kProducerWarp) ptx::grid_dependency_wait();

  if (warp >= kProducerWarp) {
    if constexpr (Traits::kMoveRegisters) ptx::decrease_registers<Traits::kProducerRegisters>();
    if (warp == kProducerWarp) {
      Producer<Traits>(p, shared, ptx::shared_address(ring)).run();
    } else if (has_finishers<Traits>(p)) {
      finish_parts<Traits>(p, shared);
    }
  } else {
    if constexpr (Traits::kMoveRegisters) ptx::increase_registers<Traits::kConsumerRegisters>();
    consume<Traits>(p, shared, query, ring);
  }
}

}  // namespace quaver::decode_fp8
