// The load warp: draws items for the CTA, publishes them one ahead and keeps the rings of K and V tiles full with one
// bulk copy a page and half.
#pragma once

#include <cstddef>

#include "attention/kernel_parts.cuh"
#include "attention/prefill_fp8/params.h"
#include "attention/prefill_fp8/traits.h"
#include "kv_cache/page_format.h"
#include "ptx/barrier.cuh"
#include "ptx/bulk_copy.cuh"

namespace quaver::prefill_fp8 {

template <class Traits>
class Loader {
 public:
  __device__ Loader(const Parameters& p, SharedState<Traits>& state, uint8_t* values)
      : p_(p), state_(state), values_(values), lane_(static_cast<int>(threadIdx.x) % 32) {
    ptx::fence_proxy_async_global();  // pages were written by ordinary stores of earlier kernels
    num_items_ = __ldcg(p.work.num_blocks) * p.layout.num_kv_heads;
  }

  /// The first item has the CTA's number; more come by ticket. The draw is in flight while the first tile is loaded.
  __device__ void run() {
    KeySpan item = publish_item(static_cast<int>(blockIdx.x));
    while (item.head >= 0) {
      const int next_index = draw();
      if (item.tile_begin < item.tile_end) load_tile(item, item.tile_begin);
      const KeySpan next = publish_item(__shfl_sync(kAllLanes, next_index, 0));
      for (int tile = item.tile_begin + 1; tile < item.tile_end; ++tile) load_tile(item, tile);
      item = next;
    }
  }

 private:
  /// What loading needs of an item.
  struct KeySpan {
    int sequence;
    int kv_len;
    int first_key;
    int tile_begin;
    int tile_end;
    int head;
  };

  /// Every CTA that had a first item draws until it gets none; the counter wraps to 0 with the last of these draws.
  __device__ int draw() const {
    int index = 0;
    if (lane_ == 0) {
      index = static_cast<int>(
          gridDim.x + atomicInc(reinterpret_cast<unsigned*>(p_.work.ticket), static_cast<unsigned>(num_items_) - 1));
    }
    return index;
  }

  /// Puts an item into the queue, a word a lane.
  __device__ KeySpan publish_item(int index) {
    constexpr int kBlockWords = sizeof(schedule::RowBlock) / 4;
    constexpr int kHeadWord = offsetof(Item, head) / 4;
    static_assert(kHeadWord == kBlockWords && kHeadWord < 32);
    const int head = index < num_items_ ? index % p_.layout.num_kv_heads : -1;
    int word = head;
    if (head >= 0 && lane_ < kBlockWords) {
      word = __ldcg(reinterpret_cast<const int*>(p_.work.blocks + index / p_.layout.num_kv_heads) + lane_);
    }
    ptx::mbarrier_wait(ptx::shared_address(&state_.item_empty[item_slot_.slot]), item_slot_.parity);
    if (lane_ <= kHeadWord) reinterpret_cast<int*>(&state_.items[item_slot_.slot])[lane_] = word;
    __syncwarp();
    if (lane_ == 0) ptx::mbarrier_arrive(ptx::shared_address(&state_.item_full[item_slot_.slot]));
    item_slot_.advance();
    const auto field = [&](size_t offset) { return __shfl_sync(kAllLanes, word, static_cast<int>(offset / 4)); };
    return {.sequence = field(offsetof(schedule::RowBlock, sequence)),
            .kv_len = field(offsetof(schedule::RowBlock, kv_len)),
            .first_key = field(offsetof(schedule::RowBlock, first_key)),
            .tile_begin = field(offsetof(schedule::RowBlock, tile_begin)),
            .tile_end = field(offsetof(schedule::RowBlock, tile_end)),
            .head = head};
  }

  __device__ void load_tile(const KeySpan& item, int tile) {
    const KvLayout layout{.num_kv_heads = p_.layout.num_kv_heads,
                          .head_dim_k = Traits::kHeadDim,
                          .head_dim_v = Traits::kHeadDim,
                          .page_size = p_.layout.page_size};
    const int tile_token = tile * Traits::kTile;
    const int first = max(tile_token, item.first_key);  // tokens that the sequence's rows may see
    const int last = min(tile_token + Traits::kTile, item.kv_len);
    const int begin = first & ~15;  // loaded in whole blocks of 16
    const int end = (last + 15) & ~15;
    // Lane i copies what the tile has of its i-th page.
    const int page_token = tile_token + lane_ * layout.page_size;
    const int from = max(page_token, begin);
    const int tokens = min(page_token + layout.page_size, end) - from;
    const uint8_t* source = p_.pages;
    if (tokens > 0) {
      const int32_t* table = p_.block_table + item.sequence * p_.block_table_stride;
      source += __ldg(table + (from >> p_.page_shift)) * p_.page_stride;
    }
    const int in_page = from & (layout.page_size - 1);
    const uint32_t destination = slot_.slot * Traits::kTileBytes + (from - tile_token) * Traits::kHeadDim;
    const auto copy = [&](uint32_t ring, int64_t offset, uint64_t* full) {
      const uint32_t barrier = ptx::shared_address(full);
      if (lane_ == 0) ptx::mbarrier_arrive_expect(barrier, (end - begin) * Traits::kHeadDim);
      __syncwarp();
      if (tokens > 0) ptx::bulk_load(ring + destination, source + offset, tokens * Traits::kHeadDim, barrier);
    };
    ptx::mbarrier_wait(ptx::shared_address(&state_.key_empty[slot_.slot]), slot_.parity);
    copy(Traits::kKeys, page_format::k_offset(layout, item.head, in_page, 0), &state_.key_full[slot_.slot]);
    ptx::mbarrier_wait(ptx::shared_address(&state_.value_empty[slot_.slot]), slot_.parity);
    const int64_t value_offset = page_format::v_offset(layout, item.head, in_page, 0);
    if (last - first == Traits::kTile) {
      copy(Traits::kValues, value_offset, &state_.value_full[slot_.slot]);
    } else {
      copy(Traits::kValues, value_offset, &state_.value_edge);
      ptx::mbarrier_wait(ptx::shared_address(&state_.value_edge), edge_parity_);
      edge_parity_ ^= 1U;
      clear_unseen_values<Traits::kTile, Traits::kHeadDim, 32>(values_ + slot_.slot * Traits::kTileBytes, 0,
                                                               Traits::kHeadDim, first - tile_token, last - tile_token);
      ptx::fence_proxy_async_shared();
      __syncwarp();
      if (lane_ == 0) ptx::mbarrier_arrive(ptx::shared_address(&state_.value_full[slot_.slot]));
    }
    slot_.advance();
  }

  const Parameters& p_;
  SharedState<Traits>& state_;
  uint8_t* values_;
  int lane_;
  int num_items_ = 0;
  uint32_t edge_parity_ = 0;
  RingPosition<Traits::kStages> slot_{.parity = 1};
  RingPosition<kItemSlots> item_slot_{.parity = 1};
};

}  // namespace quaver::prefill_fp8
