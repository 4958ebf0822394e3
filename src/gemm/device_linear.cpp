#include "gemm/device_linear.h"

#include "core/check.h"

namespace quaver {

DeviceLinear::DeviceLinear(DeviceGemm& gemm, const DeviceMatrix& matrix) : gemm_(&gemm), matrix_(matrix) {
  check(matrix.data != nullptr && matrix.n > 0 && matrix.k > 0, "device weight [", matrix.n, ", ", matrix.k,
        "]: expected device memory and positive sizes");
  check(takes_input(matrix.format, matrix.input), "device weight ", weight_format_name(matrix.format),
        " with input kind ", static_cast<int>(matrix.input), ": expected one that the format takes");
}

void DeviceLinear::run(const GemmInput& input, int64_t m, const TensorView& out, cudaStream_t stream) const {
  check(given(), "device linear: expected a weight");
  check(input.kind == matrix_.input, "input kind ", static_cast<int>(input.kind), ": expected ",
        static_cast<int>(matrix_.input));
  if (matrix_.format == WeightFormat::kBf16) {
    const Bf16Weight weight{.rows = static_cast<const Bf16*>(matrix_.data), .n = matrix_.n, .k = matrix_.k};
    gemm_->bf16.multiply(weight, input.rows, m, out, stream);
    return;
  }
  using packed_fp8::Scaling;
  const packed_fp8::PackedWeight weight{
      .packed = static_cast<const uint8_t*>(matrix_.data),
      .n = matrix_.n,
      .k = matrix_.k,
      .scaling = matrix_.format == WeightFormat::kBlock ? Scaling::kBlock : Scaling::kOuter,
      .scales = matrix_.scales};
  const packed_fp8::PackedTokens tokens{
      .packed = input.packed, .m = m, .scales = input.scales, .scale_stride = input.scale_stride};
  gemm_->packed.run(weight, tokens, out, gemm_->packed_workspace, stream);
}

}  // namespace quaver
