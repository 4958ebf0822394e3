// Random checkpoints in the FP8 formats, large enough that blocks, padding and fused weights show.
#pragma once

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/e4m3.h"
#include "model/fp8_formats.h"
#include "testing/quant_recipes.h"
#include "testing/random.h"
#include "testing/safetensors_writer.h"
#include "testing/tiny_gemma.h"

namespace quaver::testing {

/// Three layers as tiny_gemma.h has them, hidden size 160 (no multiple of 128), head dims 64 and 128. Every part of a
/// fused weight begins on a multiple of 128 rows.
inline ModelConfig fp8_model(bool gemma3, const nlohmann::json& recipe, const nlohmann::json& changes = {}) {
  nlohmann::json config = gemma3 ? tiny_gemma3_config() : tiny_gemma4_config();
  config["hidden_size"] = 160;
  config["intermediate_size"] = 384;
  config["head_dim"] = 64;
  config["num_key_value_heads"] = 2;
  config["global_head_dim"] = 128;
  config["quantization_config"] = recipe;
  if (changes.is_object()) config.update(changes);
  return parse_model_config(config.dump());
}

/// Turns every projection of `file` into codes with scales of `layout`: BF16 [N, 1] per channel, F32 otherwise; with an
/// input scale, different for each, where `input_scales`.
inline void quantize_projections(SafetensorsWriter& file, WeightScales layout, bool input_scales) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : file.tensors()) {
    if (name.find("_proj.weight") != std::string::npos) names.push_back(name);
  }
  Random random(9);
  for (const std::string& name : names) {
    const SafetensorsWriter::Tensor stored = file.tensors().at(name);
    const int64_t n = stored.shape[0];
    const int64_t k = stored.shape[1];
    std::vector<uint8_t> codes(static_cast<size_t>(n * k));
    for (size_t i = 0; i < codes.size(); ++i) {
      float value = 0;
      std::memcpy(&value, stored.bytes.data() + i * sizeof value, sizeof value);
      codes[i] = e4m3_encode(value * std::sqrt(static_cast<float>(k)) * 100.0F);
    }
    file.add_e4m3(name, {n, k}, codes);
    SafetensorsWriter::Shape shape;
    if (layout == WeightScales::kPerChannel) shape = {n, 1};
    if (layout == WeightScales::kBlock128) shape = {(n + 127) / 128, (k + 127) / 128};
    int64_t count = 1;
    for (const int64_t dim : shape) count *= dim;
    std::vector<float> scales(static_cast<size_t>(count));
    for (float& scale : scales) {
      scale = static_cast<float>(0.5 + random.uniform()) / (100.0F * std::sqrt(static_cast<float>(k)));
    }
    const std::string module = name.substr(0, name.size() - std::strlen(".weight"));
    if (layout == WeightScales::kPerChannel) {
      file.add_bf16(module + ".weight_scale", shape, scales);
    } else {
      file.add_f32(module + ".weight_scale", shape, scales);
    }
    if (input_scales) file.add_f32(module + ".input_scale", {}, {static_cast<float>(0.02 + 0.01 * random.uniform())});
  }
}

inline SafetensorsWriter fp8_checkpoint(const ModelConfig& config, WeightScales layout, bool input_scales = false) {
  SafetensorsWriter file = random_checkpoint(config, 3);
  quantize_projections(file, layout, input_scales);
  return file;
}

}  // namespace quaver::testing
