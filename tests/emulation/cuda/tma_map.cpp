// Stands for src/core/tma_map.cpp: a map of the emulation holds what it was made of.
#include "core/tma_map.h"

#include <cstring>

#include "core/check.h"
#include "simt/thread.h"

namespace quaver {

TmaMap make_tma_map(const BoxedMatrix& matrix) {
  const auto address = reinterpret_cast<uintptr_t>(matrix.data);
  check_as(ErrorKind::kCuda,
           address % 16 == 0 && matrix.stride % 8 == 0 && matrix.stride >= matrix.columns && matrix.rows > 0 &&
               matrix.columns > 0 && matrix.box_rows > 0 && matrix.box_rows <= 256 &&
               (matrix.box_columns == 64 || matrix.box_columns == 32),
           "cuTensorMapEncodeTiled of [", matrix.rows, ", ", matrix.columns, "], stride ", matrix.stride, ", ",
           matrix.box_rows, " rows of ", matrix.box_columns, " a box: expected what the driver takes");
  TmaMap map;
  static_assert(sizeof(BoxedMatrix) <= sizeof(map.opaque));
  std::memcpy(map.opaque.data(), &matrix, sizeof(matrix));
  return map;
}

}  // namespace quaver
