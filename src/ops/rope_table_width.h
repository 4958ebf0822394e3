// How wide the rope tables of the GPU are: for who sizes memory without a CUDA header.
#pragma once

#include <cstdint>

namespace quaver::device_ops {

/// Floats of one token in a rope table: a cosine and a sine for every pair, padded to 8 pairs.
[[nodiscard]] constexpr int64_t rope_table_width(int rotary_pairs) {
  return 2 * ((static_cast<int64_t>(rotary_pairs) + 7) / 8 * 8);
}

}  // namespace quaver::device_ops
