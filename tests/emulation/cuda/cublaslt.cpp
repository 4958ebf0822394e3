// CublasLt of the emulated device: a plain kernel, so that layers with BF16 weights run here too.
#include "gemm/cublaslt.h"

#include "cuda_runtime.h"

#include "gemm/bf16_product.h"

namespace quaver {
namespace {

struct Arguments {
  Bf16Weight weight;
  const Bf16* x = nullptr;
  TensorView out;
};

constexpr int kThreads = 128;
constexpr unsigned kTile = 32;

/// A thread an output, a CTA a token. As in the library, the order of the sums depends on the number of tokens, here of
/// whole tiles.
__global__ void multiply_rows(Arguments arguments) {
  const auto& [weight, x, out] = arguments;
  const bool backwards = gridDim.x / kTile % 2 == 1;
  for (int64_t column = threadIdx.x; column < weight.n; column += kThreads) {
    float sum = 0.0F;
    for (int64_t step = 0; step < weight.k; ++step) {
      const int64_t i = backwards ? weight.k - 1 - step : step;
      sum += to_float(x[blockIdx.x * weight.k + i]) * to_float(weight.rows[column * weight.k + i]);
    }
    const int64_t at = blockIdx.x * out.stride(0) + column;
    if (out.dtype == DType::kF32) {
      static_cast<float*>(out.data)[at] = sum;
    } else {
      static_cast<Bf16*>(out.data)[at] = to_bf16(sum);
    }
  }
}

}  // namespace

class CublasLt::Impl {};

CublasLt::CublasLt() = default;
CublasLt::~CublasLt() = default;

void CublasLt::multiply(const Bf16Weight& weight, const Bf16* x, int64_t m, const TensorView& out,
                        cudaStream_t stream) {
  if (m == 0) return;
  check_bf16_product(weight, x, m, out);
  launch(multiply_rows, dim3(static_cast<unsigned>(m)), kThreads, 0, stream, Arguments{weight, x, out});
}

}  // namespace quaver
