// Activations on the GPU as a linear layer takes them, quantised on the CPU.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/bf16.h"
#include "core/e4m3.h"
#include "device_case.h"
#include "gemm/activation_scale.h"
#include "gemm/gemm_input.h"
#include "gemm/packed_fp8/layout.h"

namespace quaver::testing {

class DeviceInput {
 public:
  /// `x`: [m, k]. `static_scale`: InputKind::kStatic only.
  DeviceInput(InputKind kind, const std::vector<float>& x, int64_t m, int64_t k, float static_scale = 1.0F)
      : kind_(kind), static_scale_(static_scale) {
    if (kind == InputKind::kBf16) {
      std::vector<Bf16> rows(x.size());
      std::ranges::transform(x, rows.begin(), to_bf16);
      rows_ = to_device(rows);
      return;
    }
    const bool blocks = kind == InputKind::kPerBlock;
    const int64_t group = blocks ? packed_fp8::kChunk : k;
    scale_stride_ = blocks ? packed_fp8::ceil_divide(m, 8) * 8 : kind == InputKind::kStatic ? 0 : 1;
    std::vector<float> scales(static_cast<size_t>(blocks ? packed_fp8::num_chunks(k) * scale_stride_ : m));
    std::vector<uint8_t> packed(static_cast<size_t>(packed_fp8::packed_bytes(m, k)));
    for (int64_t row = 0; row < m; ++row) {
      for (int64_t begin = 0; begin < k; begin += group) {
        const auto from = x.begin() + row * k + begin;
        const auto end = x.begin() + std::min((row + 1) * k, row * k + begin + group);
        float amax = 0.0F;
        std::for_each(from, end, [&](float value) { amax = std::max(amax, std::abs(value)); });
        const float scale = kind == InputKind::kStatic ? static_scale : activation_scale(amax);
        scales[static_cast<size_t>(begin / group * scale_stride_ + (kind == InputKind::kStatic ? 0 : row))] = scale;
        for (auto value = from; value != end; ++value) {
          const int64_t column = begin + (value - from);
          packed[static_cast<size_t>(packed_fp8::packed_offset(row, column, k))] = e4m3_quantize(*value, 1.0F / scale);
        }
      }
    }
    packed_ = to_device(packed);
    scales_ = to_device(scales);
  }

  [[nodiscard]] GemmInput input() const {
    return {.packed = packed_.data(),
            .scales = scales_.data(),
            .scale_stride = scale_stride_,
            .rows = rows_.data(),
            .kind = kind_,
            .static_scale = static_scale_};
  }

 private:
  InputKind kind_;
  float static_scale_;
  int64_t scale_stride_ = 1;
  DeviceBuffer<uint8_t> packed_;
  DeviceBuffer<float> scales_;
  DeviceBuffer<Bf16> rows_;
};

}  // namespace quaver::testing
