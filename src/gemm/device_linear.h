// y = x W^T on the GPU for the weight formats of checkpoints: packed E4M3 through our own kernel, BF16 through
// cuBLASLt.
#pragma once

#include <cstdint>
#include <memory>

#include "core/bf16.h"
#include "core/device_info.h"
#include "gemm/cublaslt.h"
#include "gemm/gemm_input.h"
#include "gemm/packed_fp8/launch.h"
#include "gemm/weight_format.h"
#include "quaver/tensor.h"

namespace quaver {

/// The products of one device. Their workspaces make it an object of one stream at a time.
struct DeviceGemm {
  /// On the current device. Throws Error(kUnsupported) where the FP8 kernels cannot run, and what CublasLt throws.
  explicit DeviceGemm(const DeviceInfo& device) : packed(device) {}
  packed_fp8::PackedGemm packed;
  packed_fp8::Workspace packed_workspace;
  CublasLt bf16;
  /// In fixed order (batch-invariant mode) BF16 products read and write rows up to the next multiple of
  /// kFixedOrderRows.
  packed_fp8::SumOrder order = packed_fp8::SumOrder::kAny;
};

/// A BF16 product in fixed order is made of products of so many rows: the library's sums depend on the shape.
inline constexpr int64_t kFixedOrderRows = 128;

/// One weight in device memory; the memory belongs to somebody else (DeviceWeights) and is complete before the first
/// product.
struct DeviceMatrix {
  WeightFormat format = WeightFormat::kBf16;
  int64_t n = 0;                  ///< out features
  int64_t k = 0;                  ///< in features
  const void* data = nullptr;     ///< packed_fp8/layout.h, or kBf16: dense rows; 256-byte aligned
  const float* scales = nullptr;  ///< kOuter: [N]; kBlock: [ceil(N/128), ceil(K/128)]; kBf16: none
  InputKind input = InputKind::kBf16;
  float static_scale = 1.0F;  ///< InputKind::kStatic: of the activations
  bool gated = false;         ///< kOuter: rows of gate and up take turns, 8 of each (packed_fp8/layout.h, part_row())
};

/// A DeviceMatrix with the kernels that multiply by it.
class DeviceLinear {
 public:
  DeviceLinear() = default;
  /// `gemm` outlives this object. Throws Error(kInvalidArgument) for a format that does not take the input.
  DeviceLinear(DeviceGemm& gemm, const DeviceMatrix& matrix);

  /// What run() wants: the ops in front prepare it.
  [[nodiscard]] InputKind input_kind() const noexcept { return matrix_.input; }
  /// InputKind::kStatic: the scale that the op in front divides by.
  [[nodiscard]] float static_scale() const noexcept { return matrix_.static_scale; }
  [[nodiscard]] int64_t out_features() const noexcept { return matrix_.n; }
  [[nodiscard]] int64_t in_features() const noexcept { return matrix_.k; }
  /// run_geglu() computes what follows the product too; run() gives outputs of gate and up in turn.
  [[nodiscard]] bool gated() const noexcept { return matrix_.gated; }
  [[nodiscard]] bool given() const noexcept { return gemm_ != nullptr; }
  [[nodiscard]] const DeviceMatrix& matrix() const noexcept { return matrix_; }

  /// Writes `out` [m, N], BF16 or F32 with dense rows, 16-byte aligned. No synchronisation, no device allocation;
  /// graph-safe; the same bits every time. Throws Error(kInvalidArgument) for another kind of input.
  void run(const GemmInput& input, int64_t m, const TensorView& out, cudaStream_t stream) const;

  /// gated(): writes gelu_tanh(gate) * up to `out` [m, N / 2], BF16. Otherwise as run().
  void run_geglu(const GemmInput& input, int64_t m, const TensorView& out, cudaStream_t stream) const;

 private:
  void check_input(const GemmInput& input) const;
  [[nodiscard]] packed_fp8::PackedWeight packed_weight() const;
  void run_bf16(const Bf16* x, int64_t m, const TensorView& out, cudaStream_t stream) const;

  DeviceGemm* gemm_ = nullptr;
  DeviceMatrix matrix_;
};

}  // namespace quaver
