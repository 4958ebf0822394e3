#include "gemm/packed_fp8/layout.h"
#include "gemm/packed_fp8/pack.h"

namespace quaver::packed_fp8 {
namespace {

constexpr int kThreads = 256;
constexpr int kPiece = 16;                          // bytes a thread moves
constexpr int kGroupPieces = kGroupBytes / kPiece;  // 64: a group of 8 rows of a chunk

/// A thread writes one piece of one row; 64 of them one contiguous group.
__global__ void __launch_bounds__(kThreads) pack_pieces(const __grid_constant__ PackArgs args, bool aligned) {
  const int64_t chunks = num_chunks(args.columns);
  const int64_t first_group = args.first_row / kGroupRows;
  const int64_t last_row = args.first_row + args.rows;
  const int64_t groups = ceil_divide(last_row, kGroupRows) - first_group;
  const int64_t count = groups * chunks * kGroupPieces;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < count; i += int64_t{gridDim.x} * kThreads) {
    const int64_t chunk = i / kGroupPieces % chunks;
    const int64_t row = (first_group + i / kGroupPieces / chunks) * kGroupRows + i % kGroupRows;
    const int64_t column = chunk * kChunk + i % kGroupPieces / kGroupRows * kPiece;
    if (row < args.first_row || row >= last_row) continue;
    const uint8_t* from = args.source + (row - args.first_row) * args.row_stride + column;
    alignas(kPiece) uint8_t piece[kPiece];
    if (aligned && column + kPiece <= args.columns) {
      *reinterpret_cast<uint4*>(piece) = *reinterpret_cast<const uint4*>(from);
    } else {
      for (int b = 0; b < kPiece; ++b) piece[b] = column + b < args.columns ? from[b] : uint8_t{0};
    }
    *reinterpret_cast<uint4*>(args.packed + packed_offset(row, column, args.columns)) =
        *reinterpret_cast<const uint4*>(piece);
  }
}

}  // namespace

void pack_rows(const PackArgs& args, cudaStream_t stream) {
  check(args.rows >= 0 && args.columns >= 1 && args.first_row >= 0, "rows ", args.rows, ", columns ", args.columns,
        ", first row ", args.first_row, ": expected >= 0, >= 1, >= 0");
  check(args.row_stride >= args.columns, "row stride ", args.row_stride, ": expected >= columns ", args.columns);
  if (args.rows == 0) return;
  check(args.source != nullptr && args.packed != nullptr, "matrix to pack: expected source and destination");
  const auto address = reinterpret_cast<uintptr_t>(args.source);
  check(reinterpret_cast<uintptr_t>(args.packed) % kPiece == 0, "packed matrix: expected 16-byte alignment");
  const bool aligned = address % kPiece == 0 && args.row_stride % kPiece == 0;
  const int64_t groups = ceil_divide(args.first_row + args.rows, kGroupRows) - args.first_row / kGroupRows;
  const int64_t blocks = ceil_divide(groups * num_chunks(args.columns) * kGroupPieces, kThreads);
  constexpr int64_t kMaxBlocks = 4096;
  pack_pieces<<<static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks), kThreads, 0, stream>>>(args, aligned);
  check_cuda(cudaGetLastError(), "pack_pieces");
}

}  // namespace quaver::packed_fp8
