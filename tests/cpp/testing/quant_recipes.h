// quantization_config of the FP8 formats, as their tools write them.
#pragma once

#include <nlohmann/json.hpp>

namespace quaver::testing {

/// compressed-tensors with one group of these strategies; `activations` may be null (weight only).
inline nlohmann::json compressed_tensors(const char* weights, nlohmann::json activations) {
  return {{"quant_method", "compressed-tensors"},
          {"format", "float-quantized"},
          {"ignore", {"lm_head", "re:.*vision_tower.*"}},
          {"config_groups",
           {{"group_0",
             {{"targets", {"Linear"}},
              {"weights",
               {{"num_bits", 8}, {"type", "float"}, {"strategy", weights}, {"symmetric", true}, {"dynamic", false}}},
              {"input_activations", std::move(activations)}}}}}};
}

inline nlohmann::json fp8_activations(const char* strategy, bool dynamic) {
  nlohmann::json activations = {
      {"num_bits", 8}, {"type", "float"}, {"strategy", strategy}, {"symmetric", true}, {"dynamic", dynamic}};
  if (std::string_view(strategy) == "group") activations["group_size"] = 128;
  return activations;
}

inline nlohmann::json fp8_dynamic() {
  return compressed_tensors("channel", fp8_activations("token", true));
}
inline nlohmann::json fp8_block() {
  nlohmann::json recipe = compressed_tensors("block", fp8_activations("group", true));
  recipe["config_groups"]["group_0"]["weights"]["block_structure"] = {128, 128};
  return recipe;
}
inline nlohmann::json fp8_static() {
  return compressed_tensors("tensor", fp8_activations("tensor", false));
}
inline nlohmann::json modelopt(const char* algorithm) {
  return {{"quant_method", "modelopt"}, {"quant_algo", algorithm}};
}
inline nlohmann::json blocks_128() {
  return {{"quant_method", "fp8"}, {"activation_scheme", "dynamic"}, {"weight_block_size", {128, 128}}};
}

}  // namespace quaver::testing
