// Byte order of a packed E4M3 matrix: the one definition for weights [N, K] and activations [M, K], CPU and GPU.
//
//   [rows/128][K/128] blocks of 16 KB; in a block [16 groups of 8 rows][8 pieces of 16 columns][8 rows][16 bytes]
//
// The innermost 128 bytes are a core matrix of a K-major WGMMA operand without swizzle (PTX ISA, "Strides" of wgmma
// matrix descriptors): LBO 128, SBO 1024. Any run of 8-row groups inside a block is one contiguous piece, so a tile of
// any 8-row granularity comes by one or two bulk copies a chunk of 128 columns.
// Both dimensions are padded to multiples of 128. Columns beyond K hold zeros in both operands (0 * NaN is NaN); rows
// beyond the last may hold anything: they reach only results that nobody stores.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace quaver::packed_fp8 {

inline constexpr int kGroupRows = 8;
inline constexpr int kBlockRows = 128;
inline constexpr int kChunk = 128;                            ///< columns of a block
inline constexpr int kBlockGroups = kBlockRows / kGroupRows;  ///< 16
inline constexpr int kGroupBytes = kGroupRows * kChunk;       ///< 1,024
inline constexpr int kBlockBytes = kBlockRows * kChunk;       ///< 16,384
inline constexpr int kCoreBytes = 128;                        ///< 8 rows of 16 columns
inline constexpr int kScaleBlock = 128;                       ///< rows and columns of a block with one scale

[[nodiscard]] QUAVER_HD constexpr int64_t ceil_divide(int64_t value, int64_t divisor) {
  return (value + divisor - 1) / divisor;
}

/// Chunks of 128 columns of a row.
[[nodiscard]] QUAVER_HD constexpr int64_t num_chunks(int64_t columns) {
  return ceil_divide(columns, kChunk);
}

/// Bytes of a packed matrix, padding included.
[[nodiscard]] QUAVER_HD constexpr int64_t packed_bytes(int64_t rows, int64_t columns) {
  return ceil_divide(rows, kBlockRows) * num_chunks(columns) * kBlockBytes;
}

/// Offset of group `group` of 8 rows in chunk `chunk` of 128 columns.
[[nodiscard]] QUAVER_HD constexpr int64_t group_offset(int64_t group, int64_t chunk, int64_t chunks) {
  return (group / kBlockGroups * chunks + chunk) * kBlockBytes + group % kBlockGroups * kGroupBytes;
}

/// Row of a packed matrix where row `row` of one of its parts lies: from `first` on, or every `stride`-th group of 8
/// rows from there, where parts take turns (gate first = 0, up first = 8, stride 2).
[[nodiscard]] QUAVER_HD constexpr int64_t part_row(int64_t first, int64_t row, int64_t stride) {
  return first + row / kGroupRows * stride * kGroupRows + row % kGroupRows;
}

/// Offset of an element of a matrix of `columns` columns.
[[nodiscard]] QUAVER_HD constexpr int64_t packed_offset(int64_t row, int64_t column, int64_t columns) {
  return group_offset(row / kGroupRows, column / kChunk, num_chunks(columns)) + column % kChunk / 16 * kCoreBytes +
         row % kGroupRows * 16 + column % 16;
}

}  // namespace quaver::packed_fp8
