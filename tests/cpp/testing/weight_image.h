// The bytes that a DeviceWeightPlan asks for, made one element at a time on the CPU.
#pragma once

#include <cstring>
#include <vector>

#include "core/bf16.h"
#include "gemm/packed_fp8/layout.h"
#include "model/device_weight_plan.h"

namespace quaver::testing {

inline void write_weight(const PlannedWeight& weight, std::vector<uint8_t>& image) {
  for (const WeightPart& part : weight.parts) {
    const auto* stored = static_cast<const uint8_t*>(part.source.weight.data);
    for (int64_t row = 0; row < part.source.out_features(); ++row) {
      if (weight.format == WeightFormat::kBf16) {
        std::vector<Bf16> values(static_cast<size_t>(weight.k));
        widen_to_bf16(part.source, row, 1, values.data());
        std::memcpy(image.data() + weight.offset + (part.first_row + row) * weight.k * 2, values.data(),
                    values.size() * 2);
        continue;
      }
      for (int64_t column = 0; column < weight.k; ++column) {
        const int64_t at = weight.offset + packed_fp8::packed_offset(part.packed_row(row), column, weight.k);
        image[static_cast<size_t>(at)] = stored[row * weight.k + column];
      }
    }
  }
}

/// Padding is zero.
inline std::vector<uint8_t> weight_image(const DeviceWeightPlan& plan) {
  std::vector<uint8_t> image(static_cast<size_t>(plan.bytes));
  write_weight(plan.embedding, image);
  if (plan.lm_head) write_weight(*plan.lm_head, image);
  for (const PlannedLayer& layer : plan.layers) {
    for (const PlannedWeight* weight : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) {
      write_weight(*weight, image);
    }
  }
  std::memcpy(image.data() + plan.floats_offset, plan.floats.data(), plan.floats.size() * sizeof(float));
  return image;
}

}  // namespace quaver::testing
