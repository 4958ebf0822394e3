// One product y = x W^T on packed FP8 operands: data, a float64 reference on the same codes, and the run on the GPU.
#pragma once

#include <vector>

#include "core/bf16.h"
#include "device_case.h"
#include "gemm/packed_fp8/launch.h"
#include "gemm/packed_fp8/pack.h"

namespace quaver::testing {

/// What the codes are.
enum class GemmData {
  kIntegers,  ///< -2 … 2 with scales that are powers of two: every sum is exact, in the tensor core too
  kNormal,    ///< N(0, 1) * 100 rounded to E4M3, scales in [0.5, 1.5)
};

struct GemmSpec {
  packed_fp8::GemmShape shape{};
  packed_fp8::Scaling scaling = packed_fp8::Scaling::kOuter;
  GemmData data = GemmData::kIntegers;
  bool one_token_scale = false;  ///< static per-tensor activations
  /// kGeglu: rows 0 … N/2 - 1 are the gate, the others up; the gate is so small that gelu bends.
  packed_fp8::Output output = packed_fp8::Output::kRows;
  uint64_t seed = 1;
};

struct GemmOutput {
  std::vector<float> values;   ///< [M, N]
  std::vector<uint32_t> bits;  ///< of the whole buffer, for comparisons
};

/// Operands in device memory. Packed buffers hold NaN codes wherever packing did not write.
class GemmCase {
 public:
  explicit GemmCase(const GemmSpec& spec);

  /// Runs into a buffer of NaN; rows of the output are `padding` elements longer than N. Fails the test if a byte of
  /// the padding changed.
  [[nodiscard]] GemmOutput run(const packed_fp8::GemmPlan& plan, DType dtype, cudaStream_t stream, int64_t padding = 0);

  /// The same for Output::kGeglu: [M, N / 2].
  [[nodiscard]] std::vector<float> run_geglu(const packed_fp8::GemmPlan& plan, cudaStream_t stream,
                                             int64_t padding = 0);

  /// Reference of outputs [M, rows.size()] for the given rows of W.
  [[nodiscard]] std::vector<double> expected(const std::vector<int64_t>& rows) const;
  [[nodiscard]] std::vector<double> expected() const;
  /// gelu_tanh(gate) * up, [M, N / 2].
  [[nodiscard]] std::vector<double> expected_geglu() const;

  /// Overwrites one code, on the host and packed.
  void set_weight(int64_t row, int64_t column, uint8_t code);
  void set_token(int64_t row, int64_t column, uint8_t code);

  [[nodiscard]] const GemmSpec& spec() const noexcept { return spec_; }
  [[nodiscard]] packed_fp8::PackedWeight weight() const;
  [[nodiscard]] packed_fp8::PackedTokens tokens() const;
  [[nodiscard]] packed_fp8::GemmPlan plan() const;
  /// Row-major tokens to the packed buffer again, as the kernel in front of a product writes them.
  void pack_tokens(cudaStream_t stream);

 private:
  /// Of the packed weight.
  [[nodiscard]] int64_t packed_row(int64_t row) const;

  GemmSpec spec_;
  std::vector<uint8_t> weight_codes_, token_codes_;  ///< row-major
  std::vector<float> weight_scales_, token_scales_;  ///< as the kernel takes them
  int64_t token_scale_stride_ = 1;
  DeviceBuffer<uint8_t> token_rows_, packed_weight_, packed_tokens_;
  DeviceBuffer<float> device_weight_scales_, device_token_scales_;
};

/// The kernels of GPU 0, prepared once.
[[nodiscard]] const packed_fp8::PackedGemm& device_gemm();
/// Its workspace, for products that run one after another.
[[nodiscard]] const packed_fp8::Workspace& device_workspace();
/// Whether its counters are as a product must leave them.
[[nodiscard]] bool device_counters_are_zero();

}  // namespace quaver::testing
