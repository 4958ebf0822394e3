// A GEMM's input in device memory as the fused ops write it, and what it should hold.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device_case.h"
#include "gemm/gemm_input.h"

namespace quaver::testing {

/// Device memory whose bytes are all 0xFF: NaN in every type.
template <class T>
[[nodiscard]] DeviceBuffer<T> poisoned(int64_t count) {
  DeviceBuffer<T> buffer(count);
  if (count == 0) return buffer;
  check_cuda(cudaMemset(buffer.data(), 0xFF, buffer.bytes()), "cudaMemset");
  check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  return buffer;
}

struct InputShape {
  InputKind kind = InputKind::kPerToken;
  int64_t tokens = 0;
  int64_t columns = 0;
  float static_scale = 0.0371F;
};

/// Everything that was written, and the poison around it.
struct InputBytes {
  std::vector<uint8_t> packed;
  std::vector<float> scales;
  std::vector<Bf16> rows;
};
/// Bit for bit.
[[nodiscard]] bool same_bits(const InputBytes& a, const InputBytes& b);

/// Buffers with room to spare, full of NaN.
class InputBuffer {
 public:
  explicit InputBuffer(const InputShape& shape);
  [[nodiscard]] GemmInput view() const;
  [[nodiscard]] InputBytes bytes() const;
  [[nodiscard]] const InputShape& shape() const noexcept { return shape_; }

 private:
  InputShape shape_;
  int64_t scale_stride_ = 1;
  DeviceBuffer<uint8_t> packed_;
  DeviceBuffer<float> scales_;
  DeviceBuffer<Bf16> rows_;
};

/// Expects `bytes` to be `values` [tokens, columns] quantised by the kind's recipe: scales to 1e-5, codes exact but for
/// roundings that the last bits of FP32 decide, zeros in the padding of columns, poison everywhere else.
void expect_input(const InputBuffer& buffer, const InputBytes& bytes, std::span<const double> values);

/// Expects exactly what the CPU's quantize_activations() makes of `values`.
void expect_cpu_codes(const InputBuffer& buffer, const InputBytes& bytes, std::span<const float> values);

}  // namespace quaver::testing
