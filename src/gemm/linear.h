// y = x W^T for the weight formats of checkpoints.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "quaver/tensor.h"

namespace quaver {

/// How activations are quantised before an FP8 product, as the checkpoint's recipe says.
enum class ActivationQuant : uint8_t {
  kNone,         ///< BF16 and F32 weights, weight-only FP8
  kPerToken,     ///< dynamic: scale = amax(row) / 448
  kPerTensor,    ///< static: `input_scale`
  kPerGroup128,  ///< dynamic over 128 consecutive inputs of a row
};

/// One weight matrix, W[N, K] row-major. Memory belongs to the checkpoint mapping (see ModelWeights::storage).
struct LinearWeight {
  ConstTensorView weight;      ///< [N, K] f32, bf16 or e4m3
  std::vector<float> scale{};  ///< e4m3 only: [ceil(N/block_n), ceil(K/block_k)], W = stored * scale of its block
  int64_t block_n = 0;         ///< rows that share a scale: 1 per channel, N per tensor, 128 block
  int64_t block_k = 0;         ///< columns that share a scale: K, or 128
  ActivationQuant activation = ActivationQuant::kNone;
  float input_scale = 1.0F;  ///< kPerTensor
  std::string name{};        ///< for messages

  [[nodiscard]] int64_t out_features() const { return weight.dim(0); }
  [[nodiscard]] int64_t in_features() const { return weight.dim(1); }
  [[nodiscard]] bool given() const noexcept { return weight.given(); }
};

/// y[M, N] = x[M, K] W^T in FP32 on the CPU. Rows of x and y are dense. FP8 recipes quantise x to E4M3 first, so the
/// result is what the GPU's FP8 product gives up to summation order.
/// With `fixed_order` every output is summed in the same order whatever M is (batch-invariant mode).
void linear(const LinearWeight& weight, const float* x, int64_t num_rows, float* y, bool fixed_order = false);

}  // namespace quaver
