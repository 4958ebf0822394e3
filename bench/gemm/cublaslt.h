// The yardstick: FP8 products of cuBLASLt on row-major operands, as PyTorch's _scaled_mm calls it. The library is
// opened at run time; without it, or in builds without its header, there is no yardstick.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/cuda.h"

namespace quaver::bench {

enum class ScaleKind {
  kRowWise,    ///< one per token and one per weight row
  kPerTensor,  ///< one each
};

struct YardstickShape {
  int64_t m = 0, n = 0, k = 0;
  ScaleKind scales = ScaleKind::kRowWise;
  bool fast_accumulation = false;  ///< sums stay in the tensor core; else they are promoted to FP32 on the way
};

/// y[M, N] BF16 = x[M, K] W[N, K]^T for one shape, with the algorithm that the library's heuristic puts first.
class Yardstick {
 public:
  virtual ~Yardstick() = default;
  virtual void run(const uint8_t* weight, const uint8_t* tokens, void* out, cudaStream_t stream) = 0;
};

class CublasLt {
 public:
  virtual ~CublasLt() = default;
  /// Null where the library has no algorithm for the shape. The scales are at least M and N values long.
  [[nodiscard]] virtual std::unique_ptr<Yardstick> prepare(const YardstickShape& shape, const float* token_scales,
                                                           const float* weight_scales) = 0;
  [[nodiscard]] virtual std::string version() const = 0;
};

/// Null without the library.
[[nodiscard]] std::unique_ptr<CublasLt> open_cublaslt();

}  // namespace quaver::bench
