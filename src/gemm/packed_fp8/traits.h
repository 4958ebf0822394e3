// Tile, ring, registers and shared memory of the GEMM kernel per token tile, with their static checks.
#pragma once

#include <cstdint>

#include "gemm/packed_fp8/plan.h"

namespace quaver::packed_fp8 {

inline constexpr int kMathWarpgroups = 2;  ///< each multiplies 64 rows of a tile, or of a high one 64 tokens
inline constexpr int kMathWarps = 4 * kMathWarpgroups;
inline constexpr int kThreads = 128 * (kMathWarpgroups + 1);  ///< a third warpgroup, of which two warps load
inline constexpr int kMaxSlots = 12;                          ///< of the ring: more do not raise the bandwidth
inline constexpr int kWarpgroupRows = 64;

inline constexpr int kSharedAlignment = 1024;  ///< of dynamic shared memory: what a box with 128-byte swizzle needs

/// Most shared memory of a CTA of compute capability 9.0.
inline constexpr int kSharedBytesPerCta = 227 * 1024;

template <int kTokens_, Scaling kScaling_, Output kOutput_ = Output::kRows, int kRows_ = kBlockRows>
struct GemmTraits {
  static constexpr int kTokens = kTokens_;           ///< of a tile
  static constexpr int kRows = kRows_;               ///< of a tile, at most
  static constexpr bool kHigh = kRows > kBlockRows;  ///< tokens are the 64-row operand of the WGMMA, else weight rows
  static constexpr int kColumns = kHigh ? kRows : kTokens;  ///< N of the WGMMA: the other operand
  static constexpr Scaling kScaling = kScaling_;
  static constexpr Output kOutput = kOutput_;
  static constexpr int kRowGranule = row_granule(kOutput);

  static constexpr bool kMaySplit = kColumns <= 144;  ///< parts of K: beyond, no room is left for them
  static constexpr bool kMayRange = kMaySplit && !kHigh;

  static constexpr int kBlocks = kColumns / 8;        ///< accumulator columns in eights: 4 registers a thread each
  static constexpr int kAccumulators = kColumns / 2;  ///< registers a thread
  /// Chunks whose products stay in the tensor core's 13-bit accumulator before they are added up in FP32. K = 512
  /// leaves 3.3e-4 relative error and costs nothing measurable in decode (128: 1.3e-4, never: 3.1e-3 at K = 21,504); K
  /// = 1,024 makes prefill 2 % faster.
  static constexpr int kPromotedChunks = kScaling == Scaling::kBlock ? 1 : kTokens >= 128 ? 8 : 4;

  /// setmaxnreg moves registers inside what the launch allocated: 3 * 128 * 168.
  static constexpr int kLoadRegisters = 40;
  static constexpr int kMathRegisters = (3 * 168 - kLoadRegisters) / kMathWarpgroups;

  /// A slot: rows, tokens, scales of tokens.
  static constexpr int kRowBytes = kRows * kChunk;
  static constexpr int kTokenBytes = kTokens * kChunk;
  static constexpr int kTokenScaleBytes = kScaling == Scaling::kBlock ? 4 * kTokens : 0;
  static constexpr int kSlotBytes =
      kRowBytes + kTokenBytes + ceil_divide(kTokenScaleBytes, kSharedAlignment) * kSharedAlignment;
  /// Outputs that a warpgroup has of a token, and tokens whose outputs it stages at a time.
  static constexpr int kTokenOutputs = kOutput == Output::kGeglu ? kWarpgroupRows / 2 : kWarpgroupRows;
  static constexpr int kStagedTokens = kTokens == 192 && kOutput == Output::kRows ? 96 : kTokens;
  /// Blocks of 8 outputs that a warp stages of each of its 16 tokens of a high tile.
  static constexpr int kStagedBlocks = kRows / 16;
  static constexpr int kStagingBytes =
      kHigh ? kWarpgroupRows * kStagedBlocks * 16
            : ceil_divide(kStagedTokens * kTokenOutputs * 2, kSharedAlignment) * kSharedAlignment;

  static_assert(!kHigh || (kTokens == kHighTileTokens && kScaling == Scaling::kOuter), "what high tiles are for");
  static_assert(kStagedTokens % 8 == 0 && kTokens % kStagedTokens == 0, "whole accumulator blocks, whole stagings");
  static_assert(2 * kAccumulators + 40 <= kMathRegisters, "FP32 sums and the running chain beside addresses");
  static_assert(kSlotBytes % kSharedAlignment == 0 && kStagingBytes % kSharedAlignment == 0, "as staged boxes need it");
};

/// Blocks of 8 accumulator columns whose sums part `rank` of a split tile adds up and stores: even_begin(rank, …).
[[nodiscard]] QUAVER_HD constexpr int exchange_slot_blocks(int blocks, int split) {
  return static_cast<int>(ceil_divide(blocks, split));
}

/// Shared memory for the partial sums that the other parts of a split tile send: 16 bytes a block and math thread.
[[nodiscard]] QUAVER_HD constexpr int exchange_bytes(int blocks, int split) {
  return (split - 1) * exchange_slot_blocks(blocks, split) * 128 * kMathWarpgroups * 16;
}

/// Shared memory besides ring, staging and exchange.
template <class Traits>
struct SharedState {
  uint64_t full[kMaxSlots];
  uint64_t empty[kMaxSlots];
  uint64_t exchange_full[kMathWarpgroups];   ///< the other parts' sums have arrived
  uint64_t exchange_empty[kMathWarpgroups];  ///< the other parts have read theirs
  int reports_before[kMathWarpgroups];       ///< partial_sums.cuh
  float column_scales[kMathWarpgroups][Traits::kColumns];
};

/// Slots that fit beside the rest.
template <class Traits>
[[nodiscard]] constexpr int ring_slots(int split) {
  const int other = kMathWarpgroups * Traits::kStagingBytes + exchange_bytes(Traits::kBlocks, split) +
                    static_cast<int>(sizeof(SharedState<Traits>)) + kSharedAlignment;
  const int slots = (kSharedBytesPerCta - other) / Traits::kSlotBytes;
  return slots < kMaxSlots ? slots : kMaxSlots;
}

/// Dynamic shared memory: ring, staging, exchange.
template <class Traits>
[[nodiscard]] constexpr int dynamic_bytes(int split) {
  return ring_slots<Traits>(split) * Traits::kSlotBytes + kMathWarpgroups * Traits::kStagingBytes +
         exchange_bytes(Traits::kBlocks, split);
}

}  // namespace quaver::packed_fp8
