// Host side of the packed FP8 GEMM: y[M, N] = (x[M, K] * scales) (W[N, K] * scales)^T.
#pragma once

#include <cstdint>

#include "core/cuda.h"
#include "core/device_info.h"
#include "gemm/packed_fp8/plan.h"
#include "gemm/packed_fp8/workspace.h"
#include "quaver/tensor.h"

namespace quaver::packed_fp8 {

/// A weight in device memory. Written once and complete (the stream synchronised) before the first gemm: kernels read
/// it before those in front of them have ended.
struct PackedWeight {
  const uint8_t* packed = nullptr;  ///< layout.h, packed_bytes(n, k), 16-byte aligned
  int64_t n = 0;
  int64_t k = 0;
  Scaling scaling = Scaling::kOuter;
  const float* scales = nullptr;  ///< kOuter: [N]; kBlock: [ceil(N/128), ceil(K/128)]
};

/// Quantised activations in device memory, as the kernel in front leaves them.
struct PackedTokens {
  const uint8_t* packed = nullptr;  ///< layout.h, packed_bytes(m, k), 16-byte aligned
  int64_t m = 0;
  /// kOuter: [M], or one value with scale_stride 0. kBlock: [ceil(K/128), scale_stride], 16-byte aligned, scale_stride
  /// a multiple of 4 and at least M rounded up to 8.
  const float* scales = nullptr;
  int64_t scale_stride = 1;
};

/// Memory for the parts of tiles on the current device: for products in one stream at a time. All zero but during one.
class Workspace {
 public:
  [[nodiscard]] int* arrivals() const { return reinterpret_cast<int*>(memory_.data()); }
  [[nodiscard]] float4* partial_sums() const { return reinterpret_cast<float4*>(memory_.data() + kArrivalBytes); }

 private:
  DeviceBuffer<uint8_t> memory_{kWorkspaceBytes};
};

/// The kernels on one device. Holds no device memory: one object serves any number of streams and threads.
class PackedGemm {
 public:
  /// Prepares the kernels on the current device. Throws Error(kUnsupported) where they cannot run.
  explicit PackedGemm(const DeviceInfo& device);

  /// How run() computes a shape on this device.
  [[nodiscard]] GemmPlan plan(const GemmShape& shape, Scaling scaling, Output output = Output::kRows,
                              SumOrder order = SumOrder::kAny) const;

  /// Writes `out` [M, N], BF16 or FP32 with dense rows. `workspace` is used by this stream alone. No synchronisation,
  /// no allocation; graph-safe; the same bits every time. Throws Error(kInvalidArgument).
  void run(const PackedWeight& weight, const PackedTokens& tokens, const TensorView& out, const Workspace& workspace,
           cudaStream_t stream, SumOrder order = SumOrder::kAny) const;

  /// The same as a plan of the shape says.
  void run(const GemmPlan& plan, const PackedWeight& weight, const PackedTokens& tokens, const TensorView& out,
           const Workspace& workspace, cudaStream_t stream) const;

  /// Writes gelu_tanh(gate) * up, in FP32 until it is stored, to `out` [M, N / 2], BF16, whose rows begin at multiples
  /// of 16 bytes. Rows of gate and up take turns in the weight, 8 of each (layout.h, part_row()); Scaling::kOuter.
  /// Otherwise as run(), in no fixed order: two tokens share a reciprocal.
  void run_geglu(const PackedWeight& weight, const PackedTokens& tokens, const TensorView& out,
                 const Workspace& workspace, cudaStream_t stream) const;

  /// The same as a plan of the shape with Output::kGeglu says.
  void run_geglu(const GemmPlan& plan, const PackedWeight& weight, const PackedTokens& tokens, const TensorView& out,
                 const Workspace& workspace, cudaStream_t stream) const;

  [[nodiscard]] const MaxClusters& max_clusters() const noexcept { return max_clusters_; }

 private:
  MaxClusters max_clusters_{};
};

}  // namespace quaver::packed_fp8
