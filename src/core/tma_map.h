// Tensor maps: what a bulk tensor copy needs to know about a matrix in device memory.
#pragma once

#include <array>
#include <cstdint>

#include "core/bf16.h"

namespace quaver {

/// The 128 opaque bytes of a CUtensorMap (CUDA driver API, "Tensor Map Object Management"); a kernel takes it as part
/// of a __grid_constant__ parameter.
struct alignas(128) TmaMap {
  std::array<uint64_t, 16> opaque{};
};

/// A BF16 matrix [rows, columns] and the boxes of it that lie in shared memory: box_rows lines of 64 columns (128
/// bytes), the 16-byte piece p of line r in the place of piece p ^ (r % 8), or of 32 columns (64 bytes), the place of
/// piece p ^ (r / 2 % 4). What a box has beyond the matrix is not written.
struct BoxedMatrix {
  Bf16* data = nullptr;  ///< 16-byte aligned
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;    ///< elements from row to row, a multiple of 8
  int box_rows = 0;      ///< 1 to 256
  int box_columns = 64;  ///< or 32
};

/// Throws Error(kCuda) where the driver refuses.
[[nodiscard]] TmaMap make_tma_map(const BoxedMatrix& matrix);

}  // namespace quaver
