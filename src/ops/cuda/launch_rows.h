// Host side of the kernels that go by rows: checks of their arguments and the launch.
#pragma once

#include <algorithm>
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

  [[nodiscard]] auto* of(const RowShape& shape) const {
    return shape.vectors == 1 ? one : shape.vectors == 3 ? three : seven;
  }
};

/// SMs of an H100 or H200 SXM: rows that have one each are few. Results do not depend on it.
inline constexpr int kSms = 132;

/// A CTA a row.
template <class Parameters>
void launch_each(const RowKernels<Parameters>& kernels, int64_t num_rows, const Parameters& parameters,
                 cudaStream_t stream) {
  const RowShape shape = row_shape(parameters.columns);
  launch_programmatic(kernels.of(shape), dim3(static_cast<unsigned>(num_rows)), shape.threads, 0, stream, parameters);
}

/// The same with one kernel for few rows and one for many.
template <class Parameters>
void launch_each(const RowKernels<Parameters>& few, const RowKernels<Parameters>& many, int64_t num_rows,
                 const Parameters& parameters, cudaStream_t stream) {
  launch_each(num_rows <= kSms ? few : many, num_rows, parameters, stream);
}

/// Two tokens for two CTAs as long as each has an SM of its own; else for one, in as many CTAs as fit, which go on to
/// others. `streams`: rows of a token that the kernel reads.
template <class Parameters>
void launch_pairs(const RowKernels<Parameters>& few, const RowKernels<Parameters>& many, int streams,
                  const Parameters& parameters, cudaStream_t stream) {
  const RowShape shape = row_shape(parameters.columns);
  const int64_t pairs = (parameters.num_tokens + 1) / 2;
  if (2 * pairs <= kSms) {
    launch_programmatic(few.of(shape), dim3(static_cast<unsigned>(2 * pairs)), shape.threads, 0, stream, parameters,
                        TwoHalves::kCtas);
    return;
  }
  auto* const kernel = many.of(shape);
  const int shared = streams * shape.vectors * TwoTokens::kTokens * shape.threads * 16;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared), "cudaFuncSetAttribute");
  int resident = 0;
  check_cuda(
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, shape.threads, static_cast<size_t>(shared)),
      "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  const int64_t ctas = std::min(pairs, int64_t{resident} * kSms);
  launch_programmatic(kernel, dim3(static_cast<unsigned>(ctas)), shape.threads, shared, stream, parameters);
}

}  // namespace quaver::device_ops
