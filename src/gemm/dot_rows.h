// The two CPU products behind linear(). Both take x in FP32, already quantised where a recipe says so.
#pragma once

#include <cstdint>

#include "gemm/linear.h"

namespace quaver {

/// Dot products of weight rows with rows of x, converted to FP32 on the way: each weight byte crosses the memory bus
/// once for all rows of x. The order of every sum depends on K alone.
void dot_rows(const LinearWeight& weight, const float* x, int64_t num_rows, float* y);

/// Panels of the weight, dequantised to FP32, times x by BLAS sgemm. False when Quaver was built without BLAS.
[[nodiscard]] bool blas_panels(const LinearWeight& weight, const float* x, int64_t num_rows, float* y);

}  // namespace quaver
