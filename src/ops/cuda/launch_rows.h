// Host side of the kernels with a CTA a token: checks of their arguments and the launch.
#pragma once

#include <bit>
#include <cmath>

#include "core/cuda.h"
#include "ops/cuda/device_ops.h"
#include "ops/cuda/row_shape.h"

namespace quaver::device_ops {

inline void check_pointer(const char* name, const void* pointer, uintptr_t alignment = 16) {
  check(pointer != nullptr && std::bit_cast<uintptr_t>(pointer) % alignment == 0, name, " ", pointer,
        ": expected device memory at a multiple of ", alignment, " bytes");
}

inline void check_rows(int64_t num_rows, int64_t columns, int64_t max_columns) {
  check(num_rows >= 0 && num_rows <= INT32_MAX, "rows ", num_rows, ": expected 0 to ", INT32_MAX);
  check(columns > 0 && columns % kVector == 0 && columns <= max_columns, "columns ", columns,
        ": expected a multiple of ", kVector, " up to ", max_columns);
}

inline void check_output(const GemmInput& out, int64_t num_rows) {
  if (out.kind == InputKind::kBf16) {
    check_pointer("GEMM input rows", out.rows);
    return;
  }
  check_pointer("GEMM input packed", out.packed);
  check_pointer("GEMM input scales", out.scales, out.kind == InputKind::kPerBlock ? 16 : 4);
  if (out.kind == InputKind::kPerBlock) {
    check(out.scale_stride % 4 == 0 && out.scale_stride >= (num_rows + 7) / 8 * 8, "GEMM input scale stride ",
          out.scale_stride, ": expected a multiple of 4, at least ", (num_rows + 7) / 8 * 8);
  } else {
    const int64_t stride = out.kind == InputKind::kStatic ? 0 : 1;
    check(out.scale_stride == stride, "GEMM input scale stride ", out.scale_stride, ": expected ", stride);
  }
  check(out.kind != InputKind::kStatic || (std::isnormal(out.static_scale) && out.static_scale > 0),
        "GEMM input static scale ", out.static_scale, ": expected > 0");
}

/// One kernel for rows of 1, 3 and 7 vectors a thread.
template <class Parameters>
struct RowKernels {
  void (*one)(Parameters);
  void (*three)(Parameters);
  void (*seven)(Parameters) = nullptr;  ///< not for rows of hidden_size
};

template <class Parameters>
void launch_rows(const RowKernels<Parameters>& kernels, int64_t num_rows, const Parameters& parameters,
                 cudaStream_t stream) {
  const RowShape shape = row_shape(parameters.columns);
  const auto kernel = shape.vectors == 1 ? kernels.one : shape.vectors == 3 ? kernels.three : kernels.seven;
  launch_programmatic(kernel, dim3(static_cast<unsigned>(num_rows)), shape.threads, 0, stream, parameters);
}

}  // namespace quaver::device_ops
