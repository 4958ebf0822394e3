// The two loading warps: one fills the slots of the ring with weights, the other with tokens and their block scales.
#pragma once

#include "gemm/packed_fp8/params.h"
#include "gemm/packed_fp8/ring.cuh"
#include "gemm/packed_fp8/traits.h"
#include "ptx/barrier.cuh"
#include "ptx/bulk_copy.cuh"
#include "ptx/cluster.cuh"
#include "ptx/launch.cuh"

namespace quaver::packed_fp8 {

/// Number of the CTA's cluster in the launch, and of the CTA in the cluster.
[[nodiscard]] __device__ __forceinline__ int cluster_of(const Parameters& p) {
  return static_cast<int>(blockIdx.x) / p.grid.cluster();
}
[[nodiscard]] __device__ __forceinline__ int rank_of(const Parameters& p) {
  return p.grid.cluster() > 1 ? ptx::cluster_rank() : 0;
}

/// A run of 8-row groups of a chunk: what lies in one block of 128 rows, and what in the next two (often nothing).
struct GroupRun {
  const uint8_t* first = nullptr;  ///< of the next chunk; chunks are kBlockBytes apart
  const uint8_t* second = nullptr;
  int64_t third_offset = 0;  ///< from the second
  int first_bytes = 0;
  int second_bytes = 0;
  int third_bytes = 0;

  __device__ GroupRun(const uint8_t* packed, int chunks, int chunk, int begin, int end) {
    const int middle = min(end, (begin / kBlockGroups + 1) * kBlockGroups);
    const int second_end = min(end, middle + kBlockGroups);
    first = packed + group_offset(begin, chunk, chunks);
    second = packed + group_offset(middle, chunk, chunks);
    first_bytes = (middle - begin) * kGroupBytes;
    second_bytes = (second_end - middle) * kGroupBytes;
    third_offset = int64_t{chunks} * kBlockBytes;
    third_bytes = (end - second_end) * kGroupBytes;
  }
};

/// What both loading warps do alike. All lanes of a warp run the same code and one of them issues: operands of bulk
/// copies are registers of the whole warp, and copies by several lanes would run one after the other.
template <class Traits>
class Loader {
 public:
  __device__ Loader(const Parameters& p, SharedState<Traits>& shared, uint32_t ring)
      : p_(p), full_(ptx::held_shared_address(shared.full)), empty_(full_ + sizeof(shared.full)), ring_(ring) {}

  /// Weights do not depend on the kernel before this one: the ring fills with them while that one ends.
  __device__ void load_weights() const {
    const uint64_t policy = ptx::policy_evict_first();
    walk([&](const Tile& tile, RingPosition& position, int& index) {
      const int token_groups = tile.token_end - tile.token_begin;
      const int scale_bytes = Traits::kTokenScaleBytes > 0 ? 4 * kGroupRows * token_groups : 0;
      const int chunk_bytes = (tile.row_end - tile.row_begin + token_groups) * kGroupBytes + scale_bytes;
      GroupRun rows(p_.weights, p_.grid.chunks, tile.chunk_begin, tile.row_begin, tile.row_end);
#pragma unroll 1
      for (int chunk = tile.chunk_begin; chunk < tile.chunk_end; ++chunk) {
        wait_empty(position, index);
        if (ptx::elect_one()) {
          const uint32_t full = full_ + 8 * position.slot;
          const uint32_t to = ring_ + position.slot * Traits::kSlotBytes;
          ptx::mbarrier_arrive_expect(full, chunk_bytes);
          ptx::bulk_load(to, rows.first, rows.first_bytes, full, policy);
          if (rows.second_bytes > 0) {
            ptx::bulk_load(to + rows.first_bytes, rows.second, rows.second_bytes, full, policy);
          }
          if (Traits::kHigh && rows.third_bytes > 0) {
            ptx::bulk_load(to + rows.first_bytes + rows.second_bytes, rows.second + rows.third_offset, rows.third_bytes,
                           full, policy);
          }
        }
        rows.first += kBlockBytes;
        rows.second += kBlockBytes;
        position = position.next(p_.num_slots);
        ++index;
      }
    });
  }

  /// Tokens and their scales. The barriers of the other CTAs of the cluster must exist.
  __device__ void load_tokens() const {
    const uint64_t policy = ptx::policy_evict_last();
    const bool pairs = p_.grid.pairs;
    const int rank = rank_of(p_);
    const auto pair = static_cast<uint16_t>(0b11 << p_.grid.rank_of(0, p_.grid.part_of(rank)));
    ptx::grid_dependency_wait();
    ptx::fence_proxy_async_global();  // tokens were written by ordinary stores
    walk([&](const Tile& tile, RingPosition& position, int& index) {
      // Each CTA of a pair loads half of the tokens for both.
      const int half = min(tile.token_begin + Traits::kBlocks / 2, tile.token_end);
      const int begin = pairs && p_.grid.row_of(rank) == 1 ? half : tile.token_begin;
      const int end = pairs && p_.grid.row_of(rank) == 0 ? half : tile.token_end;
      const uint32_t offset = Traits::kRowBytes + (begin - tile.token_begin) * kGroupBytes;
      GroupRun tokens(p_.tokens, p_.grid.chunks, tile.chunk_begin, begin, end);
      const float* scales = p_.token_scales + tile.chunk_begin * p_.token_scale_stride + tile.token_begin * kGroupRows;
      const int scale_bytes = 4 * kGroupRows * (tile.token_end - tile.token_begin);
#pragma unroll 1
      for (int chunk = tile.chunk_begin; chunk < tile.chunk_end; ++chunk) {
        wait_empty(position, index);
        if (ptx::elect_one()) {
          const uint32_t full = full_ + 8 * position.slot;
          const uint32_t slot = ring_ + position.slot * Traits::kSlotBytes;
          const auto copy = [&](uint32_t to, const uint8_t* from, int bytes) {
            if (bytes == 0) return;
            if (pairs) {
              ptx::bulk_load_multicast(to, from, bytes, full, pair, policy);
            } else {
              ptx::bulk_load(to, from, bytes, full, policy);
            }
          };
          copy(slot + offset, tokens.first, tokens.first_bytes);
          copy(slot + offset + tokens.first_bytes, tokens.second, tokens.second_bytes);
          if constexpr (Traits::kTokenScaleBytes > 0) {
            ptx::bulk_load(slot + Traits::kRowBytes + Traits::kTokenBytes, scales, scale_bytes, full, policy);
          }
        }
        tokens.first += kBlockBytes;
        tokens.second += kBlockBytes;
        scales += p_.token_scale_stride;
        position = position.next(p_.num_slots);
        ++index;
      }
    });
  }

 private:
  /// Calls visit(tile, position, index of the chunk) for every tile of the CTA; it goes through the chunks.
  template <class Visit>
  __device__ void walk(const Visit& visit) const {
    RingPosition position;
    int index = 0;
    for (WorkList<Traits::kRowGranule> list(p_.grid, cluster_of(p_), p_.num_clusters, rank_of(p_)); list.more();) {
      visit(list.take().tile, position, index);
    }
  }

  __device__ void wait_empty(const RingPosition& position, int index) const {
    if (index >= p_.num_slots) ptx::mbarrier_wait(empty_ + 8 * position.slot, position.parity ^ 1U);
  }

  const Parameters& p_;
  uint32_t full_;
  uint32_t empty_;
  uint32_t ring_;
};

}  // namespace quaver::packed_fp8
