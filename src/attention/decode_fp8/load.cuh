// The producer warp: walks the CTA's share, hands items to the consumers and keeps the ring of tiles full with one bulk
// copy a page and half (K, V). Only whole 16-token blocks that hold a visible token are loaded.
#pragma once

#include "attention/decode_fp8/params.h"
#include "attention/decode_fp8/traits.h"
#include "attention/decode_fp8/walker.cuh"
#include "kv_cache/page_format.h"
#include "ptx/barrier.cuh"
#include "ptx/bulk_copy.cuh"

namespace quaver::decode_fp8 {

inline constexpr unsigned kAllLanes = 0xFFFFFFFFU;

/// Block table entries of the sequence at hand, 64 at a time, spread over the lanes of the warp.
class PageIds {
 public:
  __device__ PageIds(const Parameters& p, const schedule::PieceRecord* record, int lane)
      : p_(p), lane_(lane), record_id_(__ldcg(&record->page_ids[lane % schedule::kRecordPages])) {}

  /// Start at entry `page`. `from_record`: entry `page` is the first one that the record brought.
  __device__ void begin(int sequence, int page, int num_pages, bool from_record) {
    row_ = p_.block_table + sequence * p_.block_table_stride;
    base_ = page;
    num_pages_ = num_pages;
    from_record_ = from_record;
    low_ = load(page + lane_);
    high_ = load(page + 32 + lane_);
  }

  /// Call with the first and the last entry of a tile, alike in all lanes, before get().
  __device__ void prepare(int first_page, int last_page) {
    if (first_page >= base_ + 32) {
      base_ += 32;
      low_ = high_;
      high_ = load(base_ + 32 + lane_);
      from_record_ = false;
    }
    use_record_ = from_record_ && last_page - base_ < schedule::kRecordPages;
  }

  /// Id of entry `page`; any page per lane, all lanes call together.
  __device__ int64_t get(int page) const {
    const int index = page - base_;
    if (use_record_) return __shfl_sync(kAllLanes, record_id_, index & (schedule::kRecordPages - 1));
    const int low = __shfl_sync(kAllLanes, low_, index & 31);
    const int high = __shfl_sync(kAllLanes, high_, index & 31);
    return index < 32 ? low : high;
  }

 private:
  __device__ int load(int page) const { return page < num_pages_ ? row_[page] : 0; }

  const Parameters& p_;
  const int32_t* row_ = nullptr;
  int lane_;
  int record_id_;
  int low_ = 0;
  int high_ = 0;
  int base_ = 0;
  int num_pages_ = 0;
  bool from_record_ = false;
  bool use_record_ = false;
};

/// Position in a ring of barriers; `parity` is the phase to wait for.
template <int kSlots>
struct RingPosition {
  int slot = 0;
  uint32_t parity = 0;
  __device__ void advance() {
    if (++slot == kSlots) {
      slot = 0;
      parity ^= 1U;
    }
  }
};

template <class Traits>
__device__ void produce(const Parameters& p, SharedState<Traits>& state, uint32_t ring_address) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto piece = static_cast<int>(blockIdx.x);
  ptx::fence_proxy_async_global();  // pages were written by ordinary stores of earlier kernels
  const uint64_t policy = ptx::policy_evict_first();
  const KvLayout layout{.num_kv_heads = p.layout.num_kv_heads,
                        .head_dim_k = Traits::kHeadDim,
                        .head_dim_v = Traits::kHeadDim,
                        .page_size = p.layout.page_size};
  const int page_shift = __ffs(layout.page_size) - 1;
  const int chunk = min(Traits::kTile, layout.page_size);

  WorkWalker<Traits> walker(p, piece);
  PageIds ids(p, p.work.records + piece, lane);
  RingPosition<Traits::kRingSlots> tile_slot{.parity = 1};
  RingPosition<kItemSlots> item_slot{.parity = 1};
  const auto publish = [&](const WorkItem& item) {
    ptx::mbarrier_wait(ptx::shared_address(&state.item_empty[item_slot.slot]), item_slot.parity);
    if (lane == 0) {
      state.items[item_slot.slot] = item;
      ptx::mbarrier_arrive(ptx::shared_address(&state.item_full[item_slot.slot]));
    }
    item_slot.advance();
  };

  WorkItem item{};
  bool first_item = true;
  while (walker.next(item)) {
    publish(item);
    const int first_token = max(item.tile_begin * Traits::kTile, item.first_key);
    const int first_page = first_token >> page_shift;
    const bool from_record = first_item && item.sequence == walker.first_sequence && first_page == walker.first_page;
    ids.begin(item.sequence, first_page, (item.kv_len + layout.page_size - 1) >> page_shift, from_record);
    first_item = false;

    for (int tile = item.tile_begin; tile < item.tile_end; ++tile) {
      const int tile_token = tile * Traits::kTile;
      const int begin = max(tile_token, item.first_key) & ~15;
      const int end = (min(tile_token + Traits::kTile, item.kv_len) + 15) & ~15;
      ids.prepare(begin >> page_shift, (end - 1) >> page_shift);
      // Lane i copies what the tile has of its i-th chunk; a chunk never crosses a page.
      const int chunk_token = tile_token + lane * chunk;
      const int from = max(chunk_token, begin);
      const int tokens = min(chunk_token + chunk, end) - from;
      const int64_t page = ids.get(from >> page_shift) * p.page_stride;
      const int in_page = from & (layout.page_size - 1);
      const int in_tile = (from - tile_token) * Traits::kHeadDim;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t full = ptx::shared_address(&state.tile_full[tile_slot.slot]);
        ptx::mbarrier_wait(ptx::shared_address(&state.tile_empty[tile_slot.slot]), tile_slot.parity);
        if (lane == 0) ptx::mbarrier_arrive_expect(full, (end - begin) * Traits::kHeadDim);
        __syncwarp();
        if (tokens > 0) {
          const int64_t offset = half == 0 ? page_format::k_offset(layout, item.head, in_page, 0)
                                           : page_format::v_offset(layout, item.head, in_page, 0);
          ptx::bulk_load(ring_address + tile_slot.slot * Traits::kSlotBytes + in_tile, p.pages + page + offset,
                         tokens * Traits::kHeadDim, full, policy);
        }
        tile_slot.advance();
      }
    }
  }
  item.rows = -1;
  publish(item);
}

}  // namespace quaver::decode_fp8
