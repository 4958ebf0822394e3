// Where the keys of a call without a cache lie in its scratch pages, and what an element becomes there: constexpr, host
// and device, so that both backends pack the same bytes.
#pragma once

#include <bit>
#include <cstdint>

#include "core/bf16.h"
#include "core/e4m3.h"
#include "core/host_device.h"

namespace quaver::direct {

/// Whose rows are whose: a list of starts [B+1], or equal lengths.
struct Sequences {
  const int32_t* starts = nullptr;
  int64_t equal_length = 0;
  int64_t count = 0;
  [[nodiscard]] QUAVER_HD constexpr int64_t start(int64_t sequence) const {
    return starts != nullptr ? starts[sequence] : sequence * equal_length;
  }
  [[nodiscard]] QUAVER_HD constexpr int64_t length(int64_t sequence) const {
    return start(sequence + 1) - start(sequence);
  }
};

/// First scratch page of a sequence. Every sequence begins a page; a page for each one before it and one for every
/// page_size keys before it are always enough, so no sum over sequences is needed.
[[nodiscard]] QUAVER_HD constexpr int64_t first_page(const Sequences& keys, int64_t sequence, int page_size) {
  return keys.start(sequence) / page_size + sequence;
}

/// Scratch pages of `num_keys` keys of `num_sequences` sequences, however they are cut.
[[nodiscard]] QUAVER_HD constexpr int64_t num_scratch_pages(int64_t num_keys, int64_t num_sequences, int page_size) {
  return num_keys / page_size + num_sequences;
}

/// The sequence that may own scratch page `page`: the last one that begins at or before it.
[[nodiscard]] QUAVER_HD constexpr int64_t sequence_of_page(const Sequences& keys, int64_t page, int page_size) {
  int64_t low = 0;
  int64_t high = keys.count;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (first_page(keys, middle, page_size) <= page ? low : high) = middle;
  }
  return low;
}

/// An element of an FP8 page; codes stay what they are. (On the GPU one instruction does it: pack.cuh.)
[[nodiscard]] constexpr uint8_t to_code(uint8_t code, float /*inverse_scale*/) {
  return code;
}
[[nodiscard]] constexpr uint8_t to_code(Bf16 value, float inverse_scale) {
  return e4m3_quantize(to_float(value), inverse_scale);
}
[[nodiscard]] constexpr uint8_t to_code(float value, float inverse_scale) {
  return e4m3_quantize(value, inverse_scale);
}

/// An element of a BF16 page, or of Q. A NaN keeps its upper bits and becomes quiet on either device.
[[nodiscard]] QUAVER_HD constexpr Bf16 to_bf16_element(float value, float inverse_scale) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return Bf16{static_cast<uint16_t>(bits >> 16 | 0x40U)};
  return to_bf16(value * inverse_scale);
}
[[nodiscard]] QUAVER_HD constexpr Bf16 to_bf16_element(Bf16 value, float inverse_scale) {
  return to_bf16_element(to_float(value), inverse_scale);
}
/// Exact: every E4M3 value is a BF16 value.
[[nodiscard]] QUAVER_HD constexpr Bf16 to_bf16_element(uint8_t code, float /*inverse_scale*/) {
  return to_bf16_element(e4m3_decode(code), 1.0F);
}

}  // namespace quaver::direct
