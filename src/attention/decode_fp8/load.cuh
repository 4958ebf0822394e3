// The producer warp: walks the CTA's share, hands items to the consumers and keeps the ring of tiles full with one bulk
// copy a page and half (K, V). Only whole 16-token blocks that hold a visible token are loaded. Early (few rows only),
// it runs ahead of griddepcontrol.wait until it comes to a tile with new keys, or to a ticket.
#pragma once

#include "attention/decode_fp8/params.h"
#include "attention/decode_fp8/traits.h"
#include "attention/kernel_parts.cuh"
#include "attention/schedule/walker.h"
#include "kv_cache/page_format.h"
#include "ptx/barrier.cuh"
#include "ptx/bulk_copy.cuh"
#include "ptx/launch.cuh"

namespace quaver::decode_fp8 {

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

/// Whether older keys are loaded before griddepcontrol.wait. Not of more than 8 rows: those kernels have no register
/// left.
template <class Traits>
[[nodiscard]] __device__ __forceinline__ bool loads_early(const Parameters& p) {
  return Traits::kFewRows && p.loads_early;
}

/// The producer's state over all pieces that its CTA takes.
template <class Traits>
class Producer {
 public:
  __device__ Producer(const Parameters& p, SharedState<Traits>& state, uint32_t ring_address)
      : p_(p),
        state_(state),
        ring_address_(ring_address),
        policy_(ptx::policy_evict_first()),
        lane_(static_cast<int>(threadIdx.x) % 32),
        page_shift_(p.page_shift),
        early_(loads_early<Traits>(p)) {
    ptx::fence_proxy_async_global();  // pages were written by ordinary stores of earlier kernels
  }

  /// Begins with the piece of the CTA's number; more come by ticket, to whoever is ready first.
  __device__ void run() {
    auto piece = static_cast<int>(blockIdx.x);
    WorkItem item;
    while (true) {
      const schedule::PieceRecord* record = p_.work.records + piece;
      schedule::WalkState next;
      PageIds ids(p_, record, lane_);
      load_words(&record->first, item);
      load_words(&record->next, next);
      schedule::WorkWalker walker(p_.shape, p_.lengths, Traits::kTile, p_.work.max_pieces, piece, next);
      bool from_record = true;  // page ids of the piece's first item came with the record
      for (bool more = item.rows >= 0; more; more = walker.next(item)) {
        publish(item);
        const int first_page = max(item.tile_begin * Traits::kTile, item.first_key) >> page_shift_;
        const int num_pages = (item.kv_len + p_.layout.page_size - 1) >> page_shift_;
        ids.begin(item.sequence, first_page, num_pages, from_record);
        from_record = false;
        for (int tile = item.tile_begin; tile < item.tile_end; ++tile) load_tile(item, tile, ids);
      }
      if (next.line.rounds == 1) break;
      wait_for_kernels_in_front();  // the counter may still be that of the layer before
      piece = take_ticket(next.line);
      if (piece >= next.line.num_pieces()) break;
    }
    item.rows = -1;
    publish(item);
  }

 private:
  __device__ void wait_for_kernels_in_front() {
    if (!early_) return;
    early_ = false;
    ptx::grid_dependency_wait();
    ptx::fence_proxy_async_global();
  }

  /// Every CTA takes one ticket too many; the counter wraps to 0 with the last of them.
  __device__ int take_ticket(const schedule::LineCut& line) const {
    unsigned ticket = 0;
    if (lane_ == 0) {
      ticket = atomicInc(reinterpret_cast<unsigned*>(p_.work.ticket), static_cast<unsigned>(line.num_pieces()) - 1);
    }
    return line.per_round + static_cast<int>(__shfl_sync(kAllLanes, ticket, 0));
  }

  __device__ void publish(const WorkItem& item) {
    ptx::mbarrier_wait(ptx::shared_address(&state_.item_empty[item_slot_.slot]), item_slot_.parity);
    if (lane_ == 0) {
      state_.items[item_slot_.slot] = item;
      ptx::mbarrier_arrive(ptx::shared_address(&state_.item_full[item_slot_.slot]));
    }
    item_slot_.advance();
  }

  __device__ void load_tile(const WorkItem& item, int tile, PageIds& ids) {
    const KvLayout layout{.num_kv_heads = p_.layout.num_kv_heads,
                          .head_dim_k = Traits::kHeadDim,
                          .head_dim_v = Traits::kHeadDim,
                          .page_size = p_.layout.page_size};
    const int chunk = min(Traits::kTile, layout.page_size);
    const int tile_token = tile * Traits::kTile;
    if (tile_token + Traits::kTile > item.kv_len - item.query_len) wait_for_kernels_in_front();
    const int begin = max(tile_token, item.first_key) & ~15;
    const int end = (min(tile_token + Traits::kTile, item.kv_len) + 15) & ~15;
    ids.prepare(begin >> page_shift_, (end - 1) >> page_shift_);
    // Lane i copies what the tile has of its i-th chunk; a chunk never crosses a page.
    const int chunk_token = tile_token + lane_ * chunk;
    const int from = max(chunk_token, begin);
    const int tokens = min(chunk_token + chunk, end) - from;
    const int64_t page = ids.get(from >> page_shift_) * p_.page_stride;
    const int in_page = from & (layout.page_size - 1);
    const int in_tile = (from - tile_token) * Traits::kHeadDim;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t full = ptx::shared_address(&state_.tile_full[tile_slot_.slot]);
      ptx::mbarrier_wait(ptx::shared_address(&state_.tile_empty[tile_slot_.slot]), tile_slot_.parity);
      if (lane_ == 0) ptx::mbarrier_arrive_expect(full, (end - begin) * Traits::kHeadDim);
      __syncwarp();
      if (tokens > 0) {
        const int64_t offset = half == 0 ? page_format::k_offset(layout, item.head, in_page, 0)
                                         : page_format::v_offset(layout, item.head, in_page, 0);
        ptx::bulk_load(ring_address_ + tile_slot_.slot * Traits::kSlotBytes + in_tile, p_.pages + page + offset,
                       tokens * Traits::kHeadDim, full, policy_);
      }
      tile_slot_.advance();
    }
  }

  const Parameters& p_;
  SharedState<Traits>& state_;
  uint32_t ring_address_;
  uint64_t policy_;
  int lane_;
  int page_shift_;
  bool early_;  ///< kernels in front may still run
  RingPosition<Traits::kRingSlots> tile_slot_{.parity = 1};
  RingPosition<kItemSlots> item_slot_{.parity = 1};
};

}  // namespace quaver::decode_fp8
