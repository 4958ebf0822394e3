// A LinearWeight with its element type known to the compiler, and how each element type becomes FP32.
#pragma once

#include <cstdint>

#include "core/bf16.h"
#include "core/check.h"
#include "core/e4m3.h"
#include "core/simd.h"
#include "gemm/linear.h"

namespace quaver {

/// One stored E4M3 byte.
struct E4M3 {
  uint8_t code = 0;
};

[[nodiscard]] inline float to_float(float value) {
  return value;
}
[[nodiscard]] inline float to_float(E4M3 value) {
  return e4m3_decode(value.code);
}

/// Consecutive elements that one vector step takes: 16 E4M3 codes fill a register.
inline constexpr int kStep = 16;

/// kStep consecutive elements in FP32.
inline void load_step(const float* source, simd::F32x8& low, simd::F32x8& high) {
  low = simd::load<simd::F32x8>(source);
  high = simd::load<simd::F32x8>(source + 8);
}
inline void load_step(const Bf16* source, simd::F32x8& low, simd::F32x8& high) {
  low = simd::widen_bf16(simd::load<simd::U16x8>(source));
  high = simd::widen_bf16(simd::load<simd::U16x8>(source + 8));
}
inline void load_step(const E4M3* source, simd::F32x8& low, simd::F32x8& high) {
  simd::decode_e4m3(simd::load<simd::U8x16>(source), low, high);
}

template <class Element>
struct WeightView {
  const Element* data = nullptr;  ///< [n, k], row n at data + n * row_stride
  int64_t n = 0, k = 0, row_stride = 0;
  const float* scales = nullptr;     ///< [ceil(n/block_n), ceil(k/block_k)]; null: 1.0
  int64_t block_n = 1, block_k = 1;  ///< without scales: the whole matrix
  int64_t k_blocks = 1;

  [[nodiscard]] const Element* row(int64_t index) const { return data + index * row_stride; }
  /// Scale of the block that holds element (row, column).
  [[nodiscard]] float scale(int64_t row, int64_t column) const {
    return scales == nullptr ? 1.0F : scales[row / block_n * k_blocks + column / block_k];
  }
};

/// Calls f(WeightView<element type>). Throws Error(kInvalidArgument) for a weight that linear() does not take.
template <class Function>
void with_weight_view(const LinearWeight& weight, const Function& f) {
  const auto call = [&]<class Element>(const Element* data) {
    const int64_t n = weight.out_features();
    const int64_t k = weight.in_features();
    WeightView<Element> view{
        .data = data, .n = n, .k = k, .row_stride = weight.weight.stride(0), .block_n = n, .block_k = k};
    if (!weight.scale.empty()) {
      view.scales = weight.scale.data();
      view.block_n = weight.block_n;
      view.block_k = weight.block_k;
      view.k_blocks = (k + view.block_k - 1) / view.block_k;
    }
    f(view);
  };
  switch (weight.weight.dtype) {
    case DType::kF32: return call(static_cast<const float*>(weight.weight.data));
    case DType::kBF16: return call(static_cast<const Bf16*>(weight.weight.data));
    case DType::kE4M3: return call(static_cast<const E4M3*>(weight.weight.data));
    default:
      fail(ErrorKind::kInvalidArgument, "weight dtype ", dtype_name(weight.weight.dtype),
           ": expected f32, bf16 or e4m3");
  }
}

}  // namespace quaver
