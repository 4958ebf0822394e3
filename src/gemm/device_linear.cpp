#include "gemm/device_linear.h"

#include "core/check.h"

namespace quaver {
namespace {

packed_fp8::PackedTokens tokens_of(const GemmInput& input, int64_t m) {
  return {.packed = input.packed, .m = m, .scales = input.scales, .scale_stride = input.scale_stride};
}

}  // namespace

DeviceLinear::DeviceLinear(DeviceGemm& gemm, const DeviceMatrix& matrix) : gemm_(&gemm), matrix_(matrix) {
  check(matrix.data != nullptr && matrix.n > 0 && matrix.k > 0, "device weight [", matrix.n, ", ", matrix.k,
        "]: expected device memory and positive sizes");
  check(takes_input(matrix.format, matrix.input), "device weight ", weight_format_name(matrix.format),
        " with input kind ", static_cast<int>(matrix.input), ": expected one that the format takes");
  check(!matrix.gated || (matrix.format == WeightFormat::kOuter && matrix.n % 16 == 0), "device weight ",
        weight_format_name(matrix.format), " of ", matrix.n,
        " rows, gate and up in turn: expected a multiple of 16 with a scale per row");
}

void DeviceLinear::check_input(const GemmInput& input) const {
  check(given(), "device linear: expected a weight");
  check(input.kind == matrix_.input, "input kind ", static_cast<int>(input.kind), ": expected ",
        static_cast<int>(matrix_.input));
}

packed_fp8::PackedWeight DeviceLinear::packed_weight() const {
  using packed_fp8::Scaling;
  return {.packed = static_cast<const uint8_t*>(matrix_.data),
          .n = matrix_.n,
          .k = matrix_.k,
          .scaling = matrix_.format == WeightFormat::kBlock ? Scaling::kBlock : Scaling::kOuter,
          .scales = matrix_.scales};
}

void DeviceLinear::run(const GemmInput& input, int64_t m, const TensorView& out, cudaStream_t stream) const {
  check_input(input);
  if (matrix_.format == WeightFormat::kBf16) return run_bf16(input.rows, m, out, stream);
  gemm_->packed.run(packed_weight(), tokens_of(input, m), out, gemm_->packed_workspace, stream, gemm_->order);
}

void DeviceLinear::run_bf16(const Bf16* x, int64_t m, const TensorView& out, cudaStream_t stream) const {
  const Bf16Weight weight{.rows = static_cast<const Bf16*>(matrix_.data), .n = matrix_.n, .k = matrix_.k};
  if (gemm_->order == packed_fp8::SumOrder::kAny) return gemm_->bf16.multiply(weight, x, m, out, stream);
  TensorView block = out;
  block.shape[0] = kFixedOrderRows;
  for (int64_t row = 0; row < m; row += kFixedOrderRows) {
    block.data = static_cast<uint8_t*>(out.data) + row * out.stride(0) * dtype_bytes(out.dtype);
    gemm_->bf16.multiply(weight, x + row * matrix_.k, kFixedOrderRows, block, stream);
  }
}

void DeviceLinear::run_geglu(const GemmInput& input, int64_t m, const TensorView& out, cudaStream_t stream) const {
  check_input(input);
  check(gated(), "device weight ", weight_format_name(matrix_.format),
        ": expected one whose rows of gate and up take turns");
  gemm_->packed.run_geglu(packed_weight(), tokens_of(input, m), out, gemm_->packed_workspace, stream);
}

}  // namespace quaver
