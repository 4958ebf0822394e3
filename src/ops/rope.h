// Rotary position embedding, NeoX half split: pair j of a head is (j, j + head_dim/2).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace quaver {

/// How the heads of one layer kind rotate (LayerConfig's rope_* fields).
struct RopeShape {
  int head_dim = 0;      ///< even
  int rotary_pairs = 0;  ///< leading pairs that rotate; the others keep angle 0 ("proportional", Gemma 4)
  double theta = 1e4;
  double factor = 1.0;  ///< linear scaling: frequencies are divided by it
  friend bool operator==(const RopeShape&, const RopeShape&) = default;
};

/// Frequency of each rotating pair, rounded to FP32 at the same places as transformers
/// (modeling_rope_utils.py: 1 / theta^(2j/head_dim), then / factor): at position 100,000 a frequency that differs in
/// the last bit turns a key by 0.006 rad.
[[nodiscard]] std::vector<float> rope_frequencies(const RopeShape& shape);

/// Cosines and sines of one step's positions: [positions, rotary_pairs] each.
struct RopeTable {
  std::vector<float> cos, sin;
};

/// Fills `table` for `positions`; the angle is the FP32 product position * frequency, as in transformers.
void rope_table(std::span<const float> frequencies, std::span<const int32_t> positions, RopeTable& table);

/// Rotates x[positions, num_heads, head_dim] in place.
void apply_rope(const RopeShape& shape, const RopeTable& table, int64_t num_positions, int num_heads, float* x);

}  // namespace quaver
