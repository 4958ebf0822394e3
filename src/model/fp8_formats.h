// FP8 checkpoint formats: the recipe of `quantization_config`, and weight scales in every shape that tools write.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gemm/linear.h"
#include "model/safetensors.h"

namespace quaver {

/// How the elements of a weight matrix share scales.
enum class WeightScales : uint8_t { kPerTensor, kPerChannel, kBlock128 };

/// What a recipe says about its quantised layers. Which layers those are is told by the dtype of their weights.
struct QuantRecipe {
  WeightScales weights = WeightScales::kPerChannel;
  ActivationQuant activation = ActivationQuant::kNone;
};

/// Parses ModelConfig::quantization_json: compressed-tensors (channel, tensor, block), modelopt (FP8,
/// FP8_PER_CHANNEL_PER_TOKEN, FP8_PB_WO; from config.json or hf_quant_config.json), and "fp8" (128x128 blocks or per
/// tensor). Empty for an empty text. Throws Error(kUnsupported) naming the field for anything else.
[[nodiscard]] std::optional<QuantRecipe> parse_quant_recipe(const std::string& quantization_json);

/// Values of a BF16 or F32 tensor. Throws Error(kInvalidArgument) naming `name` for another dtype.
[[nodiscard]] std::vector<float> read_floats(const StoredTensor& tensor, const std::string& name);

/// Like read_floats, and throws Error(kInvalidArgument) for a value that is zero, negative, NaN or infinite.
[[nodiscard]] std::vector<float> read_scales(const StoredTensor& tensor, const std::string& name);

/// Sets scale, block_n and block_k of `linear` from a stored scale: [], [1], [1, 1] per tensor, [N] or [N, 1] per
/// channel, [ceil(N/128), ceil(K/128)] or [ceil(N/128), 1, ceil(K/128), 1] block. Throws Error(kInvalidArgument).
void set_weight_scales(LinearWeight& linear, const StoredTensor& scales, const std::string& name);

/// The same scale everywhere, in the layout of `layout`.
void set_uniform_scales(LinearWeight& linear, WeightScales layout, float scale);

}  // namespace quaver
