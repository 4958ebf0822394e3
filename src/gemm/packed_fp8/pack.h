// Row-major E4M3 into the packed layout (layout.h), once when a weight is loaded.
#pragma once

#include <cstdint>

#include "core/cuda.h"

namespace quaver::packed_fp8 {

struct PackArgs {
  const uint8_t* source = nullptr;  ///< [rows, columns] E4M3 codes on the device
  int64_t row_stride = 0;           ///< bytes between rows of `source`
  int64_t rows = 0;
  int64_t columns = 0;
  uint8_t* packed = nullptr;  ///< of packed_bytes(all rows of the matrix, columns), 16-byte aligned
  int64_t first_row = 0;      ///< of the packed matrix: fused weights (q, k, v) and slabs go to their own rows
  /// The next 8 rows lie so many groups of 8 further: 2 where gate and up take turns. `source` then begins in its
  /// matrix as many rows behind a multiple of 8 as first_row does.
  int64_t group_stride = 1;
};

/// Packs the rows; columns up to the next multiple of 128 become zeros. A gemm that follows in the stream may read its
/// weights before this has ended: synchronise between the last pack and the first gemm.
/// Throws Error(kInvalidArgument).
void pack_rows(const PackArgs& args, cudaStream_t stream);

}  // namespace quaver::packed_fp8
