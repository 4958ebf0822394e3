// Static scales of the FP8 cache: from the checkpoint in any known spelling, or derived, or 1.0.
#pragma once

#include <functional>
#include <string>

#include "model/safetensors.h"
#include "model/weights.h"

namespace quaver {

/// Finds a tensor by name; null when the checkpoint has none.
using TensorFinder = std::function<const StoredTensor*(const std::string& name)>;

/// Scales that follow from the norms, so that nothing can clip: K from `layer.k_norm`, V where it is normed (Gemma 4)
/// and 1.0 elsewhere; with KvScalePolicy::kOne 1.0 everywhere.
void derive_kv_scales(const ModelConfig& config, const LayerConfig& shape, KvScalePolicy policy, LayerWeights& layer);

/// Replaces what `attention` ("model.layers.3.self_attn") stores: k_scale, attn.k_scale, k_proj.k_scale or
/// k_proj.output_scale, likewise for V, or one legacy kv_scale; one value, or one a kv head. Returns true when both K
/// and V had one. Throws Error(kInvalidArgument) naming the tensor for a bad shape, dtype or value.
bool load_kv_scales(const TensorFinder& find, const std::string& attention, int num_kv_heads, LayerWeights& layer);

}  // namespace quaver
