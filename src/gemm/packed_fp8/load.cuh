// The loading warp: weights, tokens and (block scales) the tokens' scales of one chunk of 128 columns fill a slot.
#pragma once

#include "gemm/packed_fp8/params.h"
#include "gemm/packed_fp8/ring.cuh"
#include "gemm/packed_fp8/traits.h"
#include "ptx/barrier.cuh"
#include "ptx/bulk_copy.cuh"
#include "ptx/cluster.cuh"
#include "ptx/launch.cuh"

namespace quaver::packed_fp8 {

/// Walks the chunks of all tiles of a CTA.
class ChunkCursor {
 public:
  __device__ ChunkCursor(const Parameters& p, int cluster, int rank) : p_(p), index_(cluster), rank_(rank) { enter(); }

  __device__ bool valid() const { return index_ < p_.grid.num_tiles(); }
  __device__ void advance() {
    if (++chunk_ < tile_.chunk_end) return;
    index_ += p_.num_clusters;
    enter();
  }
  __device__ const Tile& tile() const { return tile_; }
  __device__ int chunk() const { return chunk_; }

 private:
  __device__ void enter() {
    if (!valid()) return;
    tile_ = tile_at(p_.grid, index_, rank_);
    chunk_ = tile_.chunk_begin;
  }

  const Parameters& p_;
  int index_;
  int rank_;
  Tile tile_{};
  int chunk_ = 0;
};

/// One thread's work.
template <class Traits>
class Loader {
 public:
  __device__ Loader(const Parameters& p, SharedState<Traits>& shared, uint32_t ring, int cluster, int rank)
      : p_(p),
        full_(ptx::shared_address(shared.full)),
        empty_(ptx::shared_address(shared.empty)),
        ring_(ring),
        cluster_(cluster),
        rank_(rank) {}

  /// Weights do not depend on the kernel before this one: the ring fills with them while that one ends.
  __device__ void load_ahead() {
    for (ChunkCursor at(p_, cluster_, rank_); ahead_ < p_.num_slots && at.valid(); at.advance()) {
      load_weights(at, ahead_++);
    }
  }

  /// All the rest. The barriers of the other CTAs of the cluster must exist.
  __device__ void run() {
    ptx::grid_dependency_wait();
    ptx::fence_proxy_async_global();  // tokens were written by ordinary stores
    RingPosition position{.slot = 0, .parity = 1};
    for (ChunkCursor at(p_, cluster_, rank_); at.valid(); at.advance()) {
      if (ahead_ > 0) {
        --ahead_;
      } else {
        ptx::mbarrier_wait(empty_ + 8 * position.slot, position.parity);
        load_weights(at, position.slot);
      }
      load_tokens(at, position.slot);
      position = position.next(p_.num_slots);
    }
  }

 private:
  __device__ void load_weights(const ChunkCursor& at, int slot) const {
    const Tile& tile = at.tile();
    const uint32_t full = full_ + 8 * slot;
    const int token_groups = tile.token_end - tile.token_begin;
    const int scale_bytes = Traits::kTokenScaleBytes > 0 ? 4 * kGroupRows * token_groups : 0;
    ptx::mbarrier_arrive_expect(full, (tile.row_end - tile.row_begin + token_groups) * kGroupBytes + scale_bytes);
    copy_groups(p_.weights, tile.row_begin, tile.row_end, at.chunk(), [&](int group, const uint8_t* from, int bytes) {
      ptx::bulk_load(ring_ + slot * Traits::kSlotBytes + (group - tile.row_begin) * kGroupBytes, from, bytes, full,
                     weight_policy_);
    });
  }

  __device__ void load_tokens(const ChunkCursor& at, int slot) const {
    const Tile& tile = at.tile();
    const uint32_t full = full_ + 8 * slot;
    const uint32_t destination = ring_ + slot * Traits::kSlotBytes + kBlockBytes;
    if constexpr (Traits::kShareTokens) {  // each CTA of the two loads half for both
      const int half = tile.token_begin + Traits::kBlocks / 2;
      const int begin = rank_ == 0 ? tile.token_begin : half;
      const int end = rank_ == 0 ? min(half, tile.token_end) : tile.token_end;
      copy_groups(p_.tokens, begin, end, at.chunk(), [&](int group, const uint8_t* from, int bytes) {
        ptx::bulk_load_multicast(destination + (group - tile.token_begin) * kGroupBytes, from, bytes, full, 0b11,
                                 token_policy_);
      });
    } else {
      copy_groups(
          p_.tokens, tile.token_begin, tile.token_end, at.chunk(), [&](int group, const uint8_t* from, int bytes) {
            ptx::bulk_load(destination + (group - tile.token_begin) * kGroupBytes, from, bytes, full, token_policy_);
          });
    }
    if constexpr (Traits::kTokenScaleBytes > 0) {
      ptx::bulk_load(destination + Traits::kTokenBytes,
                     p_.token_scales + at.chunk() * p_.token_scale_stride + tile.token_begin * kGroupRows,
                     4 * kGroupRows * (tile.token_end - tile.token_begin), full, token_policy_);
    }
  }

  /// Calls copy(first group, its address, bytes) for each contiguous piece of groups [begin, end) of one chunk.
  template <class Copy>
  __device__ void copy_groups(const uint8_t* packed, int begin, int end, int chunk, const Copy& copy) const {
    for (int group = begin; group < end;) {
      const int piece_end = min(end, (group / kBlockGroups + 1) * kBlockGroups);
      copy(group, packed + group_offset(group, chunk, p_.grid.chunks), (piece_end - group) * kGroupBytes);
      group = piece_end;
    }
  }

  const Parameters& p_;
  uint32_t full_;
  uint32_t empty_;
  uint32_t ring_;
  int cluster_;
  int rank_;
  int ahead_ = 0;  ///< slots that hold weights but no tokens yet
  uint64_t weight_policy_ = ptx::policy_evict_first();
  uint64_t token_policy_ = ptx::policy_evict_last();
};

}  // namespace quaver::packed_fp8
