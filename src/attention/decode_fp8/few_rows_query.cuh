// Up to 8 query rows: Q in shared memory, and what a thread knows about its rows.
#pragma once

#include "attention/decode_fp8/query.cuh"

namespace quaver::decode_fp8::few_rows {

/// What a thread knows about its query rows.
template <class Traits>
struct QueryRows {
  float scale[Traits::kRowsPerThread];  ///< accumulator to logit in log2 units
  int first_key[Traits::kRowsPerThread];
  int last_key[Traits::kRowsPerThread];
  int all_first;  ///< keys that every row of the item sees
  int all_last;
};

/// All consumer warps together: the rows of one item, four to a core matrix (hi, lo, hi, …); zeros where there is none.
template <class Traits>
__device__ __forceinline__ void load_query(const Parameters& p, const WorkItem& item, SharedState<Traits>& state,
                                           uint8_t* query) {
  constexpr int kWarps = Traits::kConsumers / 32;
  constexpr int kRowsPerWarp = Traits::kRows / kWarps;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  RawRow<Traits::kHeadDim> raw[kRowsPerWarp] = {};
#pragma unroll
  for (int r = 0; r < kRowsPerWarp; ++r) {  // all loads are in flight before the first is waited for
    const int row = kWarps * r + warp;
    if (row < item.rows) raw[r] = load_row<Traits>(p, item, row);
  }
#pragma unroll
  for (int r = 0; r < kRowsPerWarp; ++r) {
    const int row = kWarps * r + warp;
    uint8_t* destination = query + row / 4 * 8 * Traits::kHeadDim + row % 4 * 32;
    const float scale = store_row<Traits>(raw[r], destination, 16, p.low_part_mask);
    if (threadIdx.x % 32 == 0) state.query_scale[row] = scale;
  }
  ptx::fence_proxy_async_shared();
}

template <class Traits>
__device__ __forceinline__ void make_rows(const Parameters& p, const WorkItem& item, const SharedState<Traits>& state,
                                          QueryRows<Traits>& rows) {
  float scale = p.scale_log2;
  if (p.k_scale != nullptr) scale *= p.k_scale[item.head];
  scale *= p.q_descale.at(item.sequence, item.head) * p.k_descale.at(item.sequence, item.head);
  const tiles::KeyRange all = tiles::visible_keys(p.shape.mask, item.kv_len, item.query_len, 0, item.query_len).all;
  rows.all_first = static_cast<int>(all.first);
  rows.all_last = static_cast<int>(all.last);
#pragma unroll
  for (int j = 0; j < Traits::kRowsPerThread; ++j) {
    const int row = 4 * j + static_cast<int>(threadIdx.x) % 4;
    const int token = row < item.rows ? tiles::row_token(row, p.shape.group) : 0;
    const tiles::KeyRange own = tiles::visible_keys(p.shape.mask, item.kv_len, item.query_len, token);
    rows.scale[j] = scale * state.query_scale[row];
    rows.first_key[j] = static_cast<int>(own.first);
    rows.last_key[j] = static_cast<int>(own.last);
  }
}

}  // namespace quaver::decode_fp8::few_rows
