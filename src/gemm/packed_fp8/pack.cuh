// The kernel behind pack_rows().
#pragma once

#include "gemm/packed_fp8/layout.h"
#include "gemm/packed_fp8/pack.h"

namespace quaver::packed_fp8 {

inline constexpr int kPackThreads = 256;
inline constexpr int kPackPiece = 16;                          // bytes a thread moves
inline constexpr int kGroupPieces = kGroupBytes / kPackPiece;  // 64: a group of 8 rows of a chunk

/// A thread writes one piece of one row; 64 of them one contiguous group. `aligned`: of source rows, to 16 bytes.
static __global__ void __launch_bounds__(kPackThreads)
    pack_pieces(const __grid_constant__ PackArgs args, bool aligned) {
  const int64_t chunks = num_chunks(args.columns);
  const int64_t first_group = args.first_row / kGroupRows;
  const int64_t begin = args.first_row % kGroupRows;  // rows are counted from the first group on
  const int64_t end = begin + args.rows;
  const int64_t groups = ceil_divide(end, kGroupRows);
  const int64_t count = groups * chunks * kGroupPieces;
  for (int64_t i = blockIdx.x * int64_t{kPackThreads} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kPackThreads) {
    const int64_t chunk = i / kGroupPieces % chunks;
    const int64_t row = i / kGroupPieces / chunks * kGroupRows + i % kGroupRows;
    const int64_t column = chunk * kChunk + i % kGroupPieces / kGroupRows * kPackPiece;
    if (row < begin || row >= end) continue;
    const uint8_t* from = args.source + (row - begin) * args.row_stride + column;
    alignas(kPackPiece) uint8_t piece[kPackPiece];
    if (aligned && column + kPackPiece <= args.columns) {
      *reinterpret_cast<uint4*>(piece) = *reinterpret_cast<const uint4*>(from);
    } else {
      for (int b = 0; b < kPackPiece; ++b) piece[b] = column + b < args.columns ? from[b] : uint8_t{0};
    }
    const int64_t packed_row = part_row(first_group * kGroupRows, row, args.group_stride);
    *reinterpret_cast<uint4*>(args.packed + packed_offset(packed_row, column, args.columns)) =
        *reinterpret_cast<const uint4*>(piece);
  }
}

}  // namespace quaver::packed_fp8
