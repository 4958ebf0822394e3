#include "gemm/packed_fp8/pack.cuh"

namespace quaver::packed_fp8 {

void pack_rows(const PackArgs& args, cudaStream_t stream) {
  check(args.rows >= 0 && args.columns >= 1 && args.first_row >= 0, "rows ", args.rows, ", columns ", args.columns,
        ", first row ", args.first_row, ": expected >= 0, >= 1, >= 0");
  check(args.group_stride >= 1, "group stride ", args.group_stride, ": expected >= 1");
  check(args.row_stride >= args.columns, "row stride ", args.row_stride, ": expected >= columns ", args.columns);
  if (args.rows == 0) return;
  check(args.source != nullptr && args.packed != nullptr, "matrix to pack: expected source and destination");
  const auto address = reinterpret_cast<uintptr_t>(args.source);
  check(reinterpret_cast<uintptr_t>(args.packed) % kPackPiece == 0, "packed matrix: expected 16-byte alignment");
  const bool aligned = address % kPackPiece == 0 && args.row_stride % kPackPiece == 0;
  const int64_t groups = ceil_divide(args.first_row + args.rows, kGroupRows) - args.first_row / kGroupRows;
  const int64_t blocks = ceil_divide(groups * num_chunks(args.columns) * kGroupPieces, kPackThreads);
  constexpr int64_t kMaxBlocks = 4096;
  const dim3 grid(static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks));
  launch(pack_pieces, grid, kPackThreads, 0, stream, args, aligned);
}

}  // namespace quaver::packed_fp8
