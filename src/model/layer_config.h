// What differs from layer to layer: kind, window, head dims, kv heads, rotary embedding.
#pragma once

#include <vector>

#include "model/json.h"
#include "quaver/model.h"

namespace quaver {

/// One entry a layer, from `layer_types` (else every sixth layer, or `sliding_window_pattern`, is full: B30),
/// `sliding_window`, `head_dim`, `num_key_value_heads` and their Gemma 4 counterparts for full layers. `config` gives
/// family, num_layers and num_q_heads. Throws Error(kInvalidArgument / kUnsupported) naming the field.
[[nodiscard]] std::vector<LayerConfig> read_layers(const Fields& text, const ModelConfig& config);

}  // namespace quaver
