// Tile sizes, register budgets and shared memory of the decode kernel, per head dim.
#pragma once

#include <cstdint>

#include "attention/schedule/walker.h"

namespace quaver::decode_fp8 {

/// Rows of Q a warpgroup's M = 64 WGMMA holds as hi (row 16w + g) and lo (row 16w + g + 8) parts.
inline constexpr int kMaxRows = tiles::kMaxDecodeRows;

using schedule::WorkItem;

/// Work items that the producer may be ahead of the consumers.
inline constexpr int kItemSlots = 4;

/// What differs between head dims.
struct DecodeConfig {
  int consumer_warpgroups;  ///< each owns head_dim / consumer_warpgroups columns of O
  int ctas_per_sm;
  int ring_slots;   ///< K and V tiles alternate in the ring
  int value_chunk;  ///< columns of one PV step: its accumulator takes value_chunk / 2 registers a thread
};

/// Two CTAs an SM hide each other's latency; at 512 columns O needs two warpgroups and the ring all shared memory.
[[nodiscard]] constexpr DecodeConfig decode_config(int head_dim) {
  switch (head_dim) {
    case 64: return {.consumer_warpgroups = 1, .ctas_per_sm = 3, .ring_slots = 8, .value_chunk = 64};
    case 96: return {.consumer_warpgroups = 1, .ctas_per_sm = 2, .ring_slots = 8, .value_chunk = 96};
    case 128: return {.consumer_warpgroups = 1, .ctas_per_sm = 2, .ring_slots = 6, .value_chunk = 128};
    case 192: return {.consumer_warpgroups = 1, .ctas_per_sm = 2, .ring_slots = 8, .value_chunk = 64};
    case 256: return {.consumer_warpgroups = 1, .ctas_per_sm = 2, .ring_slots = 6, .value_chunk = 64};
    default: return {.consumer_warpgroups = 2, .ctas_per_sm = 1, .ring_slots = 6, .value_chunk = 64};
  }
}

template <int kHeadDim_>
struct DecodeTraits {
  static constexpr DecodeConfig kConfig = decode_config(kHeadDim_);
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kRows = kMaxRows;
  static constexpr bool kFewRows = false;
  static constexpr int kTile = tiles::kv_tile(tiles::KernelFamily::kDecode, kHeadDim);
  static constexpr int kWarpgroups = kConfig.consumer_warpgroups;
  static constexpr int kCtasPerSm = kConfig.ctas_per_sm;
  static constexpr int kRingSlots = kConfig.ring_slots;

  static constexpr int kConsumers = 128 * kWarpgroups;
  /// The producer is a warpgroup of which one warp works where registers must move to the consumers, else one warp.
  static constexpr bool kMoveRegisters = kCtasPerSm <= 2;
  static constexpr int kThreads = kConsumers + (kMoveRegisters ? 128 : 32);
  /// The three other warps finish the parts of cut items: an atomic and the loads of all parts take several us while
  /// memory is busy, and the consumers go on meanwhile.
  static constexpr int kFinishers = kMoveRegisters ? 96 : 0;

  /// setmaxnreg moves registers only inside what the launch allocated; asking for more hangs.
  static constexpr int kRegistersPerThread = 65536 / kCtasPerSm / kThreads / 8 * 8;
  static constexpr int kProducerRegisters = 88;
  static constexpr int kFreeRegisters = kRegistersPerThread * (kWarpgroups + 1) - kProducerRegisters;
  static constexpr int kConsumerRegisters =
      kFreeRegisters / kWarpgroups > 240 ? 240 : kFreeRegisters / kWarpgroups / 8 * 8;

  /// QK accumulators are added up in FP32 every 128 columns of the head dim from d = 256 on: the tensor core keeps 13
  /// fraction bits, which shows on peaked data (docs/numerics.md).
  static constexpr int kScoreChunk = kHeadDim >= 256 ? 128 : kHeadDim;
  static constexpr int kScoreChunks = kHeadDim / kScoreChunk;

  static constexpr int kValueColumns = kHeadDim / kWarpgroups;  ///< of one warpgroup
  static constexpr int kValueChunk = kConfig.value_chunk;
  static constexpr int kValueChunks = kValueColumns / kValueChunk;

  /// Loads of parts in flight in the combine: as many as registers allow.
  static constexpr int kPartsAtOnce = kMoveRegisters ? 20 : 16;

  static constexpr int kQueryBytes = 2 * kMaxRows * kHeadDim;
  static constexpr int kSlotBytes = kTile * kHeadDim;
  static constexpr int kSharedBytes = kQueryBytes + kRingSlots * kSlotBytes;

  static_assert(kTile > 0 && kTile % 32 == 0, "a PV step takes 32 tokens");
  static_assert(kScoreChunk % 32 == 0 && kHeadDim % kScoreChunk == 0, "a QK step takes 32 columns");
  static_assert(kValueColumns % kValueChunk == 0, "PV steps cover the columns of a warpgroup");
  static_assert(kRingSlots <= 32 && kRingSlots % 2 == 0, "one lane initialises one barrier; K and V alternate");
  static_assert(kCtasPerSm * (kSharedBytes + 2048) <= 228 * 1024, "shared memory of an SM, 1 KB a CTA reserved");
};

/// Up to 4 or 8 query rows: tokens along M (few_rows.cuh).
template <int kHeadDim_, int kRows_>
struct FewRowsTraits {
  static constexpr DecodeConfig kConfig = decode_config(kHeadDim_);
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kRows = kRows_;
  static constexpr bool kFewRows = true;
  static constexpr int kTile = tiles::kv_tile(tiles::KernelFamily::kDecode, kHeadDim);
  static constexpr int kCtasPerSm = kConfig.ctas_per_sm;
  static constexpr int kRingSlots = kConfig.ring_slots;
  static constexpr int kConsumers = 128;
  static constexpr int kFinishers = kCtasPerSm <= 2 ? 96 : 0;
  static constexpr int kThreads = kConsumers + 32 + kFinishers;
  static constexpr bool kMoveRegisters = false;  ///< 128 a thread are enough

  static constexpr int kColumns = 2 * kRows;  ///< of a WGMMA: hi and lo of every row
  static constexpr int kRowsPerThread = kRows / 4;
  static constexpr int kTokenBlocks = kTile / 64;
  static constexpr int kValueBlocks = (kHeadDim + 63) / 64;
  static constexpr int kScoreChunk = kHeadDim >= 256 ? 128 : kHeadDim;
  static constexpr int kScoreChunks = kHeadDim / kScoreChunk;
  static constexpr int kPartsAtOnce = kCtasPerSm == 1 ? 20 : 17;

  static constexpr int kQueryBytes = kColumns * (kHeadDim + kTile);  ///< Q, then P
  static constexpr int kSlotBytes = kTile * kHeadDim;
  /// The last block of 64 columns may read past head dim and tile.
  static constexpr int kSharedBytes = kQueryBytes + kRingSlots * kSlotBytes + (kValueBlocks * 64 - kHeadDim) * 16;
  static_assert(kCtasPerSm * (kSharedBytes + 2048) <= 228 * 1024, "shared memory of an SM, 1 KB a CTA reserved");
};

/// Shared memory besides the tiles.
template <class Traits>
struct SharedState {
  uint64_t tile_full[Traits::kRingSlots];
  uint64_t tile_empty[Traits::kRingSlots];
  uint64_t item_full[kItemSlots];
  uint64_t item_done[kItemSlots];  ///< by the consumers, to the finishers
  uint64_t item_empty[kItemSlots];
  uint64_t warm;  ///< see warm_parameters()
  WorkItem items[kItemSlots];
  alignas(
      16) float of_warps[Traits::kFewRows ? Traits::kRows : 1][4];  ///< few rows: maximum or sum of each consumer warp
  float query_scale[Traits::kRows];                                 ///< power of two that a row of Q was divided by
  int is_last_part;                                                 ///< of the CTA's last item, to the consumers
  int finish_is_last_part;                                          ///< of an earlier one, to the finishers
};

}  // namespace quaver::decode_fp8
