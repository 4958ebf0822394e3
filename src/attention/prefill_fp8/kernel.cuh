// START HERE. FP8 prefill attention for sm_90a over the paged E4M3 cache: any number of query rows.
//
//   schedule (once a step)  block list: row blocks of all sequences, longest first
//   load warp               load.cuh: draws items (block x kv head), K and V tiles -> rings, by bulk copies
//   three Q warps           query.cuh: Q of the next item as E4M3, into the other of two buffers
//   2 or 3 math warpgroups  mainloop.cuh: S, softmax, P V of 64 rows each (`split`: 32), in turns; epilogue.cuh: O, LSE
//
// README.md beside this file has the cycle budget and what was measured.
#pragma once

#include "attention/prefill_fp8/epilogue.cuh"
#include "attention/prefill_fp8/query.cuh"
#include "ptx/launch.cuh"

namespace quaver::prefill_fp8 {

/// Calls work(item, index of the item in this CTA) for one item after the other; a warp's item slot is given back
/// after.
template <class Traits, class Work>
__device__ __forceinline__ void for_each_item(SharedState<Traits>& shared, Work work) {
  RingPosition<kItemSlots> slot;
  for (int index = 0;; ++index) {
    ptx::mbarrier_wait(ptx::shared_address(&shared.item_full[slot.slot]), slot.parity);
    const Item& item = shared.items[slot.slot];
    if (item.head < 0) return;
    work(item, index);
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(ptx::shared_address(&shared.item_empty[slot.slot]));
    slot.advance();
  }
}

template <class Traits>
__device__ __forceinline__ void quantize_queries(const Parameters& p, SharedState<Traits>& shared, uint8_t* query) {
  for_each_item<Traits>(shared, [&](const Item& item, int index) {
    const int buffer = index % Traits::kQueryBuffers;
    const uint32_t parity = index / Traits::kQueryBuffers % 2;
    ptx::mbarrier_wait(ptx::shared_address(&shared.query_empty[buffer]), parity ^ 1U);
    load_query<Traits>(p, item, query + buffer * Traits::kQueryBytes, shared.query[buffer]);
    ptx::mbarrier_arrive(ptx::shared_address(&shared.query_full[buffer]));
  });
}

template <class Traits>
__device__ __forceinline__ void compute(const Parameters& p, SharedState<Traits>& shared) {
  const int warpgroup = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / 128, 0);
  const int row_in_group =
      static_cast<int>(threadIdx.x) % 128 / 32 * (8 * Traits::kThreadRows) + static_cast<int>(threadIdx.x) % 32 / 4;
  RingPosition<Traits::kStages> slot;
  if (warpgroup == Traits::kWarpgroups - 1) pass_turn<Traits>(warpgroup);
  for_each_item<Traits>(shared, [&](const Item& item, int index) {
    const int buffer = index % Traits::kQueryBuffers;
    const int row_group = warpgroup / Traits::kColumnGroups;
    const int column = warpgroup % Traits::kColumnGroups * Traits::kValueColumns;
    ptx::mbarrier_wait(ptx::shared_address(&shared.query_full[buffer]), index / Traits::kQueryBuffers % 2);
    const QueryInfo<Traits>& query = shared.query[buffer];
    const RowInfo* rows = query.rows + row_group * Traits::kWarpgroupRows + row_in_group;
    RowState<Traits> state;
    reset(state);
    attend<Traits>(p, item, query.tiles[row_group], rows, warpgroup,
                   Traits::kQuery + buffer * Traits::kQueryBytes + row_group * 64 * Traits::kHeadDim, shared, slot,
                   state);
    RowPlace places[Traits::kThreadRows];
#pragma unroll
    for (int i = 0; i < Traits::kThreadRows; ++i) places[i] = rows[8 * i].place;
    const int first_token = query.first_token;
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(ptx::shared_address(&shared.query_empty[buffer]));
    const int row = item.block.first_row + row_group * Traits::kWarpgroupRows + row_in_group;
    write_rows<Traits>(p, item, row, first_token, places, column, shared.staging[threadIdx.x / 32], state);
  });
}

template <class Traits>
__device__ __forceinline__ void init_barriers(SharedState<Traits>& shared) {
  const auto init = [](uint64_t& barrier, int arrivals) {
    ptx::mbarrier_init(ptx::shared_address(&barrier), arrivals);
  };
  for (int i = 0; i < Traits::kStages; ++i) {
    init(shared.key_full[i], 1);
    init(shared.key_empty[i], Traits::kMathWarps);
    init(shared.value_full[i], 1);
    init(shared.value_empty[i], Traits::kMathWarps);
  }
  init(shared.value_edge, 1);
  for (int i = 0; i < Traits::kQueryBuffers; ++i) {
    init(shared.query_full[i], 32 * Traits::kQueryWarps);
    init(shared.query_empty[i], Traits::kMathWarps);
  }
  for (int i = 0; i < kItemSlots; ++i) {
    init(shared.item_full[i], 1);
    init(shared.item_empty[i], Traits::kMathWarps + Traits::kQueryWarps);
  }
  ptx::fence_mbarrier_init();
}

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1) quaver_prefill_fp8(const __grid_constant__ Parameters p) {
  static_assert(kSharedBytes<Traits> <= kMaxSharedBytes);
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& shared = *reinterpret_cast<SharedState<Traits>*>(memory + (Traits::kState - kSharedBase));
  ptx::launch_dependents();
  if (ptx::shared_address(memory) != kSharedBase) __trap();
  if (threadIdx.x == 0) init_barriers(shared);
  __syncthreads();
  ptx::grid_dependency_wait();

  const auto warp = static_cast<int>(threadIdx.x) / 32;
  if (warp < Traits::kMathWarps) {
    ptx::increase_registers<Traits::kMathRegisters>();
    compute<Traits>(p, shared);
    return;
  }
  ptx::decrease_registers<Traits::kLoadRegisters>();
  if (warp == Traits::kMathWarps) {
    Loader<Traits>(p, shared, memory + (Traits::kValues - kSharedBase)).run();
  } else {
    quantize_queries<Traits>(p, shared, memory);
  }
}

}  // namespace quaver::prefill_fp8
