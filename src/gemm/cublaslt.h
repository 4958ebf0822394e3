// cuBLASLt: BF16 weights of the model, and FP8 products on row-major operands as the yardstick of the bench. The
// library is opened at run time, so that nothing needs it to link or to start; builds without its header have no
// products.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/bf16.h"
#include "core/cuda.h"
#include "quaver/tensor.h"

namespace quaver {

/// BF16 weight in device memory, dense [N, K], 256-byte aligned.
struct Bf16Weight {
  const Bf16* rows = nullptr;
  int64_t n = 0;
  int64_t k = 0;
};

enum class Fp8ScaleKind {
  kRowWise,    ///< one per token and one per weight row
  kPerTensor,  ///< one each
};

struct Fp8Shape {
  int64_t m = 0, n = 0, k = 0;
  Fp8ScaleKind scales = Fp8ScaleKind::kRowWise;
  bool fast_accumulation = false;  ///< sums stay in the tensor core; else they are promoted to FP32 on the way
};

/// y[M, N] BF16 = x[M, K] W[N, K]^T on row-major E4M3 for one shape, as PyTorch's _scaled_mm calls it.
class Fp8Yardstick {
 public:
  virtual ~Fp8Yardstick() = default;
  virtual void run(const uint8_t* weight, const uint8_t* tokens, void* out, cudaStream_t stream) = 0;
};

/// The library on the device that was current at construction, with a workspace: calls for one stream at a time.
class CublasLt {
 public:
  /// Throws Error(kNotFound) where the library is not installed, Error(kUnsupported) in builds without its header.
  CublasLt();
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;
  CublasLt(CublasLt&&) = delete;
  CublasLt& operator=(CublasLt&&) = delete;

  /// out[M, N] = x[M, K] W^T with FP32 sums. `x` is dense, `out` BF16 or F32 with dense rows, both 16-byte aligned. The
  /// first call with a shape asks the library for its algorithm, which the shape then keeps: results repeat bit for
  /// bit. No synchronisation, no device allocation; graph-safe. Throws Error(kInvalidArgument), and Error(kUnsupported)
  /// where the library has no algorithm.
  void multiply(const Bf16Weight& weight, const Bf16* x, int64_t m, const TensorView& out, cudaStream_t stream);

  /// Null where the library has no algorithm for the shape. The scales are at least M and N values long.
  [[nodiscard]] std::unique_ptr<Fp8Yardstick> yardstick(const Fp8Shape& shape, const float* token_scales,
                                                        const float* weight_scales);

  [[nodiscard]] std::string version() const;

  /// Whether the constructor would find the library.
  [[nodiscard]] static bool available();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quaver
