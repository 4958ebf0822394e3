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

/// What differs between head dims and precisions.
struct PrefillConfig {
  int warpgroups;       ///< math warpgroups, 64 query rows each in `single`, 32 in `split` …
  int stages;           ///< K tiles, and as many V tiles, in shared memory
  int value_chunk;      ///< columns of even PV steps ...
  int odd_value_chunk;  ///< ... and of odd ones, in a second accumulator; 0: one accumulator
  int math_registers;
  int load_registers;
  int query_buffers = 2;  ///< 1: Q of the next item is made after the last tile of this one
  int column_groups = 1;  ///< … which this many neighbours share: each has its part of the columns of O
};

/// Two warpgroups alternate between tensor core and softmax; where O leaves room for a third one, it gains 3 to 5 %.
/// A second PV accumulator hides its FP32 update; 64 + 32 columns are what 232 registers hold beside 128 of O.
[[nodiscard]] constexpr PrefillConfig single_config(int head_dim) {
  switch (head_dim) {
    case 64: return {3, 8, 64, 0, 152, 56};
    case 96: return {3, 6, 96, 0, 152, 56};
    case 128: return {3, 5, 64, 0, 152, 56};
    case 192: return {2, 3, 64, 32, 224, 56};
    case 256: return {2, 2, 64, 32, 224, 56};
    default: return {2, 2, 64, 32, 224, 56, 2, 2};
  }
}

/// Half as many rows leave half of O's registers: a third warpgroup up to 192 columns, two whole PV accumulators.
[[nodiscard]] constexpr PrefillConfig split_config(int head_dim) {
  switch (head_dim) {
    case 64: return {3, 8, 64, 0, 152, 56};
    case 96: return {3, 6, 96, 0, 152, 56};
    case 128: return {3, 5, 64, 64, 152, 56};
    case 192: return {3, 3, 64, 64, 152, 56};
    case 256: return {2, 2, 64, 64, 224, 56};
    default: return {2, 2, 64, 64, 224, 56, 1};
  }
}

/// `split` holds a query row in two rows of the M = 64 WGMMA, hi in row 16w + g and lo in row 16w + g + 8 of warp w, as
/// the decode kernel does: hi + lo/16 is one FMA inside a thread, and P has its two rows where Q has them.
template <int kHeadDim_, bool kSplit_>
struct PrefillTraits {
  static constexpr bool kSplit = kSplit_;
  static constexpr PrefillConfig kConfig = kSplit ? split_config(kHeadDim_) : single_config(kHeadDim_);
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kTile = tiles::kv_tile(tiles::KernelFamily::kPrefill, kHeadDim);
  static constexpr int kWarpgroups = kConfig.warpgroups;
  static constexpr int kStages = kConfig.stages;
  static constexpr int kThreadRows = kSplit ? 1 : 2;  ///< query rows that a thread holds
  static constexpr int kWarpRows = 8 * kThreadRows;
  static constexpr int kWarpgroupRows = 4 * kWarpRows;  ///< query rows of a warpgroup
  static constexpr int kColumnGroups = kConfig.column_groups;
  static constexpr int kRowGroups = kWarpgroups / kColumnGroups;
  static constexpr int kRows = kWarpgroupRows * kRowGroups;         ///< of an item
  static constexpr int kValueColumns = kHeadDim / kColumnGroups;    ///< of a warpgroup
  static constexpr int kScores = kTile / 4 * kThreadRows;           ///< of a thread, in a tile
  static constexpr int kOutputs = kValueColumns / 4 * kThreadRows;  ///< of a thread
  static constexpr int kMathThreads = 128 * kWarpgroups;
  static constexpr int kThreads = kMathThreads + 128;  ///< the last warpgroup loads
  static constexpr int kMathWarps = 4 * kWarpgroups;
  static constexpr int kQueryWarps = 3;
  static constexpr int kMathRegisters = kConfig.math_registers;
  static constexpr int kLoadRegisters = kConfig.load_registers;

  /// PV belongs to the turn of a warpgroup. At head dim 512 PV and QK are two thirds of a tile's chain: nothing of the
  /// other warpgroup would fit beside them (README).
  static constexpr bool kTurnHasValues = kHeadDim <= 256;

  /// The turn lasts until the scores are there, not only under way: 2 % where exponentials set the pace.
  static constexpr bool kTurnHasScores = !kTurnHasValues || (!kSplit && kHeadDim == 64);

  /// Columns of O that a warp stages in shared memory for its stores: 64 are cache lines; 32 where rings leave no room.
  static constexpr int kStagedColumns = kHeadDim == 96 || kHeadDim == 128 || (kSplit && kHeadDim == 192) ? 32 : 64;

  /// QK accumulators are added up in FP32 every 128 columns from head dim 256 on: the tensor core keeps 13 fraction
  /// bits, which shows on peaked data (docs/numerics.md). `single` at 256 has no registers for it.
  static constexpr int kScoreChunk = kHeadDim > 256 || (kSplit && kHeadDim == 256) ? 128 : kHeadDim;
  static constexpr int kScoreChunks = kHeadDim / kScoreChunk;

  /// A thread's registers of S and O: two columns of each of its rows, then those 8 columns further.
  [[nodiscard]] static constexpr int thread_row(int i) { return i % (2 * kThreadRows) / 2; }
  [[nodiscard]] static constexpr int place(int eight_columns, int thread_row) {
    return 2 * kThreadRows * eight_columns + 2 * thread_row;
  }

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
    while (chunk_begin(chunks) < kValueColumns) ++chunks;
    return chunks;
  }
  static constexpr int kChunks = count_chunks();
  static constexpr int kBuffers = kConfig.odd_value_chunk > 0 ? 2 : 1;

  // Shared memory: one or two Q blocks, the K ring, the V ring, the state. Addresses are constants.
  static constexpr int kQueryBuffers = kConfig.query_buffers;
  static constexpr int kQueryBytes = 64 * kRowGroups * kHeadDim;
  static constexpr int kTileBytes = kTile * kHeadDim;
  static constexpr uint32_t kQuery = kSharedBase;
  static constexpr uint32_t kKeys = kQuery + kQueryBuffers * kQueryBytes;
  static constexpr uint32_t kValues = kKeys + kStages * kTileBytes;
  static constexpr uint32_t kState = kValues + kStages * kTileBytes;

  static_assert(chunk_begin(kChunks) == kValueColumns, "PV steps cover the columns of a warpgroup");
  static_assert(kTile == 64 || kTile == 128, "a tile is one m64n64 or m64n128 step wide");
  static_assert(kMathRegisters * kWarpgroups + kLoadRegisters <= 65536 / kThreads / 8 * 8 * (kWarpgroups + 1),
                "setmaxnreg moves registers only inside what the launch allocated; asking for more hangs");
};

/// An item as the math warps and the Q warps read it.
struct Item {
  schedule::RowBlock block;
  int head;  ///< kv head; negative: no more work
};

/// Where a query row stands: its number divided once.
struct RowPlace {
  uint16_t token;  ///< from the item's first one on
  uint16_t head;   ///< of the group
};

/// What a math warp needs to know of a query row, made together with the row's Q.
struct RowInfo {
  float scale;  ///< S to logits in log2 units, positive
  int first_key;
  int last_key;  ///< visible keys: [first_key, last_key)
  RowPlace place;
};

/// tiles::TileRange of the rows of a math warpgroup, in 32 bits.
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
  WarpgroupTiles tiles[Traits::kRowGroups];
  int first_token;  ///< of the sequence's queries
};

/// Shared memory behind the tiles.
template <class Traits>
struct SharedState {
  uint64_t key_full[Traits::kStages];
  uint64_t key_empty[Traits::kStages];
  uint64_t value_full[Traits::kStages];
  uint64_t value_empty[Traits::kStages];
  uint64_t value_edge;  ///< a V tile that the load warp has to clean has landed
  uint64_t query_full[Traits::kQueryBuffers];
  uint64_t query_empty[Traits::kQueryBuffers];
  uint64_t item_full[kItemSlots];
  uint64_t item_empty[kItemSlots];
  Item items[kItemSlots];
  QueryInfo<Traits> query[Traits::kQueryBuffers];
  alignas(128) uint8_t staging[Traits::kMathWarps][Traits::kWarpRows * Traits::kStagedColumns * 2];  ///< of O in BF16
};

template <class Traits>
inline constexpr int kSharedBytes = static_cast<int>(Traits::kState - kSharedBase + sizeof(SharedState<Traits>));

/// What a CTA can have of the 228 KB of an SM.
inline constexpr int kMaxSharedBytes = 227 * 1024;

}  // namespace quaver::prefill_fp8
