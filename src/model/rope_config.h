// Rotary embedding settings of a layer kind, from every spelling that config.json files use.
#pragma once

#include "model/json.h"
#include "quaver/model.h"

namespace quaver {

/// Inverse frequency j of a head of D dims is theta^(-2j/D) / factor for j < rotary_pairs(D), 0 beyond.
struct RopeConfig {
  double theta = 1e4;
  double factor = 1.0;
  double proportion = 1.0;  ///< share of the pairs that rotate

  /// int(proportion * head_dim // 2), as transformers counts them (modeling_rope_utils, "proportional").
  [[nodiscard]] int rotary_pairs(int head_dim) const;
};

/// Reads `rope_parameters` (transformers >= 5, one entry a layer type), or Gemma 3's older `rope_theta`,
/// `rope_local_base_freq` and `rope_scaling`. The scaling applies to full-attention layers only (B29).
/// Throws Error(kInvalidArgument) for values no rotation can have, Error(kUnsupported) for other rope types.
[[nodiscard]] RopeConfig read_rope(const Fields& text, ModelFamily family, bool sliding);

}  // namespace quaver
