// What CublasLt::multiply() asks of its arguments.
#pragma once

#include <cstdint>

#include "core/check.h"
#include "gemm/cublaslt.h"

namespace quaver {

inline constexpr uint32_t kBf16WeightAlignment = 256;  ///< bytes
inline constexpr uint32_t kBf16TokenAlignment = 16;    ///< bytes, of tokens and outputs

/// Throws Error(kInvalidArgument).
inline void check_bf16_product(const Bf16Weight& weight, const Bf16* x, int64_t m, const TensorView& out) {
  const auto aligned = [](const void* pointer, uintptr_t bytes) {
    return pointer != nullptr && reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
  };
  check(m >= 1, "tokens ", m, ": expected >= 1");
  check(weight.n > 0 && weight.k > 0 && aligned(weight.rows, kBf16WeightAlignment), "BF16 weight [", weight.n, ", ",
        weight.k, "]: expected device memory aligned to ", kBf16WeightAlignment, " bytes");
  check(aligned(x, kBf16TokenAlignment), "BF16 tokens: expected device memory aligned to ", kBf16TokenAlignment,
        " bytes");
  check(out.rank == 2 && out.dim(0) == m && out.dim(1) == weight.n && out.stride(1) == 1 && out.stride(0) >= weight.n &&
            aligned(out.data, kBf16TokenAlignment),
        "out ", to_string(out), ": expected [", m, ", ", weight.n, "] with dense rows, aligned to ",
        kBf16TokenAlignment, " bytes");
  check(out.dtype == DType::kBF16 || out.dtype == DType::kF32, "out dtype ", dtype_name(out.dtype),
        ": expected bf16 or f32");
}

}  // namespace quaver
