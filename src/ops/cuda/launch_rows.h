// Host side of the kernels that go by rows: checks of their arguments and the launch.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <mutex>
#include <utility>

#include "core/cuda.h"
#include "core/device_info.h"
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

/// `ask()` for the current device and `key`, asked once for each: a step launches too often to ask every time. From any
/// thread.
template <class Key, class Ask>
[[nodiscard]] int once_a_device(const Key& key, Ask ask) {
  static std::mutex mutex;
  static std::map<std::pair<int, Key>, int> answers;
  int device = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  const std::lock_guard lock(mutex);
  const std::pair at(device, key);
  const auto known = answers.find(at);
  return known != answers.end() ? known->second : answers[at] = ask(device);
}

/// SMs of the current device: rows that have one each are few. Results do not depend on it.
[[nodiscard]] inline int64_t num_sms() {
  return once_a_device(0, [](int device) { return query_device(device).num_sms; });
}

/// A CTA for each of `count` rows, or pairs of them.
template <class Parameters>
void launch_each(const RowKernels<Parameters>& kernels, int64_t count, const Parameters& parameters,
                 cudaStream_t stream) {
  const RowShape shape = row_shape(parameters.columns);
  launch_programmatic(kernels.of(shape), dim3(static_cast<unsigned>(count)), shape.threads, 0, stream, parameters);
}

/// A CTA for each of two tokens, in a cluster, as long as each token has an SM of its own. Whether it did. `staged`:
/// rows of a token that come through shared memory (StagedRow).
template <class Parameters>
[[nodiscard]] bool launch_neighbours(const RowKernels<Parameters>& kernels, int staged, const Parameters& parameters,
                                     cudaStream_t stream) {
  if (parameters.num_tokens > num_sms()) return false;
  const RowShape shape = row_shape(parameters.columns);
  const int64_t ctas = (int64_t{parameters.num_tokens} + 1) / 2 * 2;
  const int shared = staged * shape.vectors * shape.threads * 16;
  launch_programmatic(kernels.of(shape), dim3(static_cast<unsigned>(ctas)), shape.threads, shared, stream, parameters,
                      2);
  return true;
}

/// Two tokens for the two CTAs of a cluster, as long as each CTA has an SM of its own. Whether it did.
template <class Parameters>
[[nodiscard]] bool launch_halves(const RowKernels<Parameters>& kernels, const Parameters& parameters,
                                 cudaStream_t stream) {
  const int64_t ctas = (parameters.num_tokens + 1) / 2 * TwoHalves::kCtas;
  if (ctas > num_sms()) return false;
  const RowShape shape = row_shape(parameters.columns);
  launch_programmatic(kernels.of(shape), dim3(static_cast<unsigned>(ctas)), shape.threads, 0, stream, parameters,
                      TwoHalves::kCtas);
  return true;
}

/// Two tokens for one CTA, in as many CTAs as fit, which go on to others. `streams`: rows of a token that are in shared
/// memory at a time.
template <class Parameters>
void launch_pairs(const RowKernels<Parameters>& kernels, int streams, const Parameters& parameters,
                  cudaStream_t stream) {
  const RowShape shape = row_shape(parameters.columns);
  auto* const kernel = kernels.of(shape);
  const auto shared_bytes = [&](int threads) { return streams * shape.vectors * 2 * threads * 16; };
  const int shared = shared_bytes(shape.threads);
  const int resident = once_a_device(std::pair(kernel, shape.threads), [&](int) {
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    shared_bytes(max_threads(shape.vectors))),
               "cudaFuncSetAttribute");
    int ctas = 0;
    check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&ctas, kernel, shape.threads, static_cast<size_t>(shared)),
               "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
    return ctas;
  });
  const int64_t ctas = std::min((int64_t{parameters.num_tokens} + 1) / 2, resident * num_sms());
  launch_programmatic(kernel, dim3(static_cast<unsigned>(ctas)), shape.threads, shared, stream, parameters);
}

}  // namespace quaver::device_ops
