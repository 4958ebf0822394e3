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

/// Number of the CTA's cluster in the launch, and of the CTA in the cluster.
[[nodiscard]] __device__ __forceinline__ int cluster_of(const Parameters& p) {
  return static_cast<int>(blockIdx.x) / p.grid.cluster();
}
[[nodiscard]] __device__ __forceinline__ int rank_of(const Parameters& p) {
  return p.grid.cluster() > 1 ? ptx::cluster_rank() : 0;
}

/// What one lane of the loading warp copies into the slot of every chunk: lanes 0 and 1 the weights of a tile (its rows
/// may cross a block of 128), lanes 2 and 3 the tokens, lane 4 the tokens' block scales.
struct Piece {
  const uint8_t* from = nullptr;  ///< of the next chunk
  int64_t step = 0;               ///< bytes to the chunk after it
  int bytes = 0;                  ///< 0: the lane has nothing to do
  uint32_t offset = 0;            ///< in the slot
};

inline constexpr int kFirstTokenLane = 2;
inline constexpr int kScaleLane = 4;

/// Part `part` (0 or 1) of groups [begin, end) of a packed matrix: what lies in one block, and what in the next.
[[nodiscard]] __device__ __forceinline__ Piece group_piece(const uint8_t* packed, int chunks, int chunk, int begin,
                                                           int end, int part) {
  const int middle = min(end, (begin / kBlockGroups + 1) * kBlockGroups);
  const int first = part == 0 ? begin : middle;
  const int last = part == 0 ? middle : end;
  return {.from = packed + group_offset(first, chunk, chunks),
          .step = kBlockBytes,
          .bytes = (last - first) * kGroupBytes,
          .offset = static_cast<uint32_t>((first - begin) * kGroupBytes)};
}

/// The whole loading warp. A chunk costs it one barrier and a handful of instructions: at 0.25 us a chunk a single
/// thread that works out addresses for each copy is what the GPU waits for.
template <class Traits>
class Loader {
 public:
  __device__ Loader(const Parameters& p, SharedState<Traits>& shared, uint32_t ring)
      : p_(p),
        full_(ptx::held_shared_address(shared.full)),
        empty_(full_ + sizeof(shared.full)),
        ring_(ring),
        lane_(static_cast<int>(threadIdx.x) % 32),
        pair_(static_cast<uint16_t>(0b11 << p.grid.rank_of(0, p.grid.part_of(rank_of(p))))),
        policy_(lane_ < kFirstTokenLane ? ptx::policy_evict_first() : ptx::policy_evict_last()) {}

  /// Weights do not depend on the kernel before this one: the ring fills with them while that one ends.
  __device__ void load_ahead() {
    walk([&](int index, const RingPosition& position, int chunk_bytes, const Piece& piece) {
      if (index == p_.num_slots) return false;
      if (lane_ == 0) ptx::mbarrier_arrive_expect(full_ + 8 * position.slot, chunk_bytes);
      if (lane_ < kFirstTokenLane) copy(position.slot, piece);
      return true;
    });
  }

  /// All the rest. The barriers of the other CTAs of the cluster must exist.
  __device__ void run() {
    ptx::grid_dependency_wait();
    ptx::fence_proxy_async_global();  // tokens were written by ordinary stores
    walk([&](int index, const RingPosition& position, int chunk_bytes, const Piece& piece) {
      const bool ahead = index < p_.num_slots;  // its weights are there
      if (!ahead) {
        ptx::mbarrier_wait(empty_ + 8 * position.slot, position.parity ^ 1U);
        if (lane_ == 0) ptx::mbarrier_arrive_expect(full_ + 8 * position.slot, chunk_bytes);
      }
      if (!ahead || lane_ >= kFirstTokenLane) copy(position.slot, piece);
      return true;
    });
  }

 private:
  /// Calls visit(index, position, bytes of the chunk, this lane's piece) for every chunk of the CTA until it is false.
  template <class Visit>
  __device__ void walk(const Visit& visit) const {
    RingPosition position;
    int index = 0;
    const int num_tiles = p_.grid.num_tiles();
    for (int number = cluster_of(p_); number < num_tiles; number += p_.num_clusters) {
      const int rank = rank_of(p_);
      const Tile tile = tile_at(p_.grid, number, rank);
      const int token_groups = tile.token_end - tile.token_begin;
      const int scale_bytes = Traits::kTokenScaleBytes > 0 ? 4 * kGroupRows * token_groups : 0;
      const int chunk_bytes = (tile.row_end - tile.row_begin + token_groups) * kGroupBytes + scale_bytes;
      Piece piece = piece_of(tile, rank, scale_bytes);
#pragma unroll 1
      for (int chunk = tile.chunk_begin; chunk < tile.chunk_end; ++chunk) {
        if (!visit(index, position, chunk_bytes, piece)) return;
        __syncwarp();  // a lane without a piece must not fall a whole turn of the ring behind: it would wait for ever
        piece.from += piece.step;
        position = position.next(p_.num_slots);
        ++index;
      }
    }
  }

  __device__ Piece piece_of(const Tile& tile, int rank, int scale_bytes) const {
    if (lane_ < kFirstTokenLane) {
      return group_piece(p_.weights, p_.grid.chunks, tile.chunk_begin, tile.row_begin, tile.row_end, lane_);
    }
    if (lane_ < kScaleLane) {
      // Each CTA of a pair loads half of the tokens for both.
      const bool pairs = p_.grid.pairs;
      const int half = min(tile.token_begin + Traits::kBlocks / 2, tile.token_end);
      const int begin = pairs && p_.grid.row_of(rank) == 1 ? half : tile.token_begin;
      const int end = pairs && p_.grid.row_of(rank) == 0 ? half : tile.token_end;
      Piece piece = group_piece(p_.tokens, p_.grid.chunks, tile.chunk_begin, begin, end, lane_ - kFirstTokenLane);
      piece.offset += kBlockBytes + (begin - tile.token_begin) * kGroupBytes;
      return piece;
    }
    if (lane_ == kScaleLane && Traits::kTokenScaleBytes > 0) {
      const float* scales = p_.token_scales + tile.chunk_begin * p_.token_scale_stride + tile.token_begin * kGroupRows;
      return {.from = reinterpret_cast<const uint8_t*>(scales),
              .step = 4 * p_.token_scale_stride,
              .bytes = scale_bytes,
              .offset = kBlockBytes + Traits::kTokenBytes};
    }
    return {};
  }

  __device__ void copy(int slot, const Piece& piece) const {
    if (piece.bytes == 0) return;
    const uint32_t destination = ring_ + slot * Traits::kSlotBytes + piece.offset;
    const uint32_t full = full_ + 8 * slot;
    if (p_.grid.pairs && lane_ >= kFirstTokenLane && lane_ < kScaleLane) {
      ptx::bulk_load_multicast(destination, piece.from, piece.bytes, full, pair_, policy_);
    } else {
      ptx::bulk_load(destination, piece.from, piece.bytes, full, policy_);
    }
  }

  const Parameters& p_;
  uint32_t full_;
  uint32_t empty_;
  uint32_t ring_;
  int lane_;
  uint16_t pair_;  ///< bits of the CTAs that share tokens with this one
  uint64_t policy_;
};

}  // namespace quaver::packed_fp8
