// --load-format dummy in two steps: a model without matrices, and the random values of each. CPU and GPU share both, so
// they make the same model from the same seed.
#pragma once

#include <cstdint>
#include <vector>

#include "core/bf16.h"
#include "core/host_device.h"
#include "gemm/linear.h"
#include "model/weights.h"

namespace quaver {

/// Everything but the matrices: their views have shape and dtype and no data.
[[nodiscard]] ModelWeights dummy_outline(const ModelConfig& config);

// ---- random values: value i of a matrix is table[16 random bits], four values from each 64 bits ----

inline constexpr int kDummyTableSize = 65536;
inline constexpr int kDummyDraw = 4;  ///< consecutive values that 64 bits make

/// Codes of N(0, 1) scaled so that its largest quantile here, 4.33, is 448: codes over the whole finite range.
[[nodiscard]] std::vector<uint8_t> dummy_codes();

/// N(0, 1/sqrt(columns)) keeps every activation O(1).
[[nodiscard]] std::vector<Bf16> dummy_bf16(int64_t columns);

/// BF16 values of dummy_codes() times the weight's scale.
[[nodiscard]] std::vector<Bf16> dummy_widened(const LinearWeight& weight);

/// SplitMix64 (Steele, Lea, Flood 2014): a counter in, 64 well mixed bits out.
[[nodiscard]] QUAVER_HD constexpr uint64_t dummy_mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9U;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBU;
  return value ^ (value >> 31);
}

/// Random stream of matrix `ordinal` of a model: 1 the embedding, 2 an untied head, then matrices() layer by layer.
[[nodiscard]] QUAVER_HD constexpr uint64_t dummy_stream(uint64_t seed, int64_t ordinal) {
  return dummy_mix(seed + static_cast<uint64_t>(ordinal));
}

/// The bits of values 4 * draw … 4 * draw + 3, 16 for each from the lowest on.
[[nodiscard]] QUAVER_HD constexpr uint64_t dummy_bits(uint64_t stream, int64_t draw) {
  return dummy_mix(stream + (static_cast<uint64_t>(draw) + 1) * 0x9E3779B97F4A7C15U);
}

}  // namespace quaver
