// Tile sizes, register budgets and shared memory of the prefill kernel, per head dim.
#pragma once

#include <cstdint>

#include "attention/schedule/row_blocks.h"

namespace quaver::prefill_fp8 {

/// Items that the load warp may be ahead of the math warpgroups.
inline constexpr int kItemSlots = 4;

/// Dynamic shared memory begins after the 1 KB that CUDA reserves in every CTA (there is no static one). As a constant
/// it keeps the compiler from recomputing the base in front of every WGMMA; the kernel checks it.
inline constexpr uint32_t kSharedBase = 1024;

/// What differs between head dims.
struct PrefillConfig {
  int warpgroups;       ///< math warpgroups, 64 query rows each
  int stages;           ///< K tiles, and as many V tiles, in shared memory
  int value_chunk;      ///< columns of even PV steps ...
  int odd_value_chunk;  ///< ... and of odd ones, in a second accumulator; 0: one accumulator
  int math_registers;
  int load_registers;
};

/// Two warpgroups alternate between tensor core and softmax; where O leaves room for a third one, it gains 3 to 5 %.
/// A second PV accumulator hides its FP32 update; 64 + 32 columns are what 232 registers hold beside 128 of O.
[[nodiscard]] constexpr PrefillConfig prefill_config(int head_dim) {
  switch (head_dim) {
    case 64: return {3, 8, 64, 0, 152, 56};
    case 96: return {3, 6, 96, 0, 152, 56};
    case 128: return {3, 5, 64, 0, 152, 56};
    case 192: return {2, 3, 64, 32, 224, 56};
    default: return {2, 2, 64, 32, 224, 56};
  }
}

template <int kHeadDim_>
struct PrefillTraits {
  static constexpr PrefillConfig kConfig = prefill_config(kHeadDim_);
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kTile = tiles::kv_tile(tiles::KernelFamily::kPrefill, kHeadDim);
  static constexpr int kWarpgroups = kConfig.warpgroups;
  static constexpr int kStages = kConfig.stages;
  static constexpr int kRows = 64 * kWarpgroups;  ///< of an item
  static constexpr int kMathThreads = 128 * kWarpgroups;
  static constexpr int kThreads = kMathThreads + 128;  ///< the last warpgroup loads
  static constexpr int kMathWarps = 4 * kWarpgroups;
  static constexpr int kQueryWarps = 3;
  static constexpr int kMathRegisters = kConfig.math_registers;
  static constexpr int kLoadRegisters = kConfig.load_registers;

  /// PV steps over the columns of O.
  [[nodiscard]] static constexpr int chunk_width(int chunk) {
    return chunk % 2 == 1 && kConfig.odd_value_chunk > 0 ? kConfig.odd_value_chunk : kConfig.value_chunk;
  }
  [[nodiscard]] static constexpr int chunk_begin(int chunk) {
    int column = 0;
    for (int i = 0; i < chunk; ++i) column += chunk_width(i);
    return column;
  }
  [[nodiscard]] static constexpr int count_chunks() {
    int chunks = 0;
    while (chunk_begin(chunks) < kHeadDim) ++chunks;
    return chunks;
  }
  static constexpr int kChunks = count_chunks();
  static constexpr int kBuffers = kConfig.odd_value_chunk > 0 ? 2 : 1;

  // Shared memory: two Q blocks, the K ring, the V ring, the state. Addresses are constants.
  static constexpr int kQueryBytes = kRows * kHeadDim;
  static constexpr int kTileBytes = kTile * kHeadDim;
  static constexpr uint32_t kQuery = kSharedBase;
  static constexpr uint32_t kKeys = kQuery + 2 * kQueryBytes;
  static constexpr uint32_t kValues = kKeys + kStages * kTileBytes;
  static constexpr uint32_t kState = kValues + kStages * kTileBytes;

  static_assert(chunk_begin(kChunks) == kHeadDim, "PV steps cover the columns");
  static_assert(kTile == 128, "a tile is one m64n128 step wide");
  static_assert(kMathRegisters * kWarpgroups + kLoadRegisters <= 65536 / kThreads / 8 * 8 * (kWarpgroups + 1),
                "setmaxnreg moves registers only inside what the launch allocated; asking for more hangs");
};

/// An item as the math warps and the Q warps read it.
struct Item {
  schedule::RowBlock block;
  int head;  ///< kv head; negative: no more work
};

/// What a math warp needs to know of a query row, made together with the row's Q.
struct RowInfo {
  float scale;  ///< S to logits in log2 units, positive
  int first_key;
  int last_key;  ///< visible keys: [first_key, last_key)
};

/// tiles::TileRange of the 64 rows of a math warpgroup, in 32 bits.
struct WarpgroupTiles {
  int first;
  int full_first;
  int full_last;
  int last;
};

/// Q of one item beside the E4M3 codes.
template <class Traits>
struct QueryInfo {
  RowInfo rows[Traits::kRows];
  WarpgroupTiles tiles[Traits::kWarpgroups];
};

/// Shared memory behind the tiles.
template <class Traits>
struct SharedState {
  uint64_t key_full[Traits::kStages];
  uint64_t key_empty[Traits::kStages];
  uint64_t value_full[Traits::kStages];
  uint64_t value_empty[Traits::kStages];
  uint64_t value_edge;  ///< a V tile that the load warp has to clean has landed
  uint64_t query_full[2];
  uint64_t query_empty[2];
  uint64_t item_full[kItemSlots];
  uint64_t item_empty[kItemSlots];
  Item items[kItemSlots];
  QueryInfo<Traits> query[2];
};

template <class Traits>
inline constexpr int kSharedBytes = static_cast<int>(Traits::kState - kSharedBase + sizeof(SharedState<Traits>));

}  // namespace quaver::prefill_fp8
