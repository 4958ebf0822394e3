#include "core/tma_map.h"

#include <cuda.h>
#include <cuda_runtime.h>

#include <bit>

#include "core/cuda.h"

namespace quaver {
namespace {

/// Of the driver, which nothing else here links against.
decltype(&cuTensorMapEncodeTiled) find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
             "cudaGetDriverEntryPointByVersion");
  check_as(ErrorKind::kUnsupported, found == cudaDriverEntryPointSuccess && function != nullptr,
           "cuTensorMapEncodeTiled: expected a driver of CUDA 12.0 or later");
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
}

}  // namespace

TmaMap make_tma_map(const BoxedMatrix& matrix) {
  static const auto encode = find_encode();
  static_assert(sizeof(CUtensorMap) == sizeof(TmaMap) && alignof(CUtensorMap) <= alignof(TmaMap));
  CUtensorMap map{};
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(matrix.columns), static_cast<cuuint64_t>(matrix.rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(matrix.stride) * sizeof(Bf16)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(matrix.box_columns), static_cast<cuuint32_t>(matrix.box_rows)};
  const cuuint32_t steps[] = {1, 1};
  const CUresult result = encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, matrix.data, sizes, strides, box, steps,
                                 CU_TENSOR_MAP_INTERLEAVE_NONE,
                                 matrix.box_columns == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
                                 CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  check_as(ErrorKind::kCuda, result == CUDA_SUCCESS, "cuTensorMapEncodeTiled of [", matrix.rows, ", ", matrix.columns,
           "], stride ", matrix.stride, ", ", matrix.box_rows, " rows of ", matrix.box_columns, " a box: error ",
           static_cast<int>(result));
  return std::bit_cast<TmaMap>(map);
}

}  // namespace quaver
