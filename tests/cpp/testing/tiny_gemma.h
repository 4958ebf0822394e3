// Tiny random Gemma checkpoints with all the parts of the real ones.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "quaver/model.h"
#include "testing/safetensors_writer.h"

namespace quaver::testing {

/// config.json of a 3-layer Gemma 3: layers 0 and 2 slide (window 6), head dim 32 although hidden / heads is 8, GQA 4.
inline nlohmann::json tiny_gemma3_config() {
  return {{"architectures", {"Gemma3ForCausalLM"}},
          {"model_type", "gemma3_text"},
          {"vocab_size", 97},
          {"hidden_size", 32},
          {"intermediate_size", 48},
          {"num_hidden_layers", 3},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 1},
          {"head_dim", 32},
          {"query_pre_attn_scalar", 32},
          {"sliding_window", 6},
          {"layer_types", {"sliding_attention", "full_attention", "sliding_attention"}},
          {"max_position_embeddings", 512},
          {"eos_token_id", {1, 5}},
          {"torch_dtype", "float32"}};
}

/// config.json of a 3-layer Gemma 4: window 6, head dims 32 and 64, 2 and 1 kv heads, V = K on the last, full layer.
inline nlohmann::json tiny_gemma4_config() {
  return {{"architectures", {"Gemma4ForCausalLM"}},
          {"model_type", "gemma4_text"},
          {"vocab_size", 97},
          {"hidden_size", 32},
          {"intermediate_size", 48},
          {"num_hidden_layers", 3},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"num_global_key_value_heads", 1},
          {"head_dim", 32},
          {"global_head_dim", 64},
          {"attention_k_eq_v", true},
          {"hidden_size_per_layer_input", 0},
          {"sliding_window", 6},
          {"final_logit_softcapping", 30.0},
          {"max_position_embeddings", 512},
          {"eos_token_id", {1, 5}},
          {"dtype", "float32"}};
}

/// All tensors of `config` under `prefix`, F32, N(0, 1/sqrt(K)); norm weights near their neutral value, no lm_head when
/// the embedding is tied.
inline SafetensorsWriter random_checkpoint(const ModelConfig& config, unsigned seed,
                                           const std::string& prefix = "model.") {
  std::mt19937 generator(seed);
  SafetensorsWriter file;
  const auto add = [&](const std::string& name, SafetensorsWriter::Shape shape, float mean, float deviation) {
    std::normal_distribution<float> normal(mean, deviation);
    int64_t count = 1;
    for (const int64_t dim : shape) count *= dim;
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = normal(generator);
    file.add_f32(name, std::move(shape), values);
  };
  const auto matrix = [&](const std::string& name, int64_t rows, int64_t columns) {
    add(name, {rows, columns}, 0.0F, 1.0F / std::sqrt(static_cast<float>(columns)));
  };
  const bool gemma3 = config.family == ModelFamily::kGemma3;
  const auto norm = [&](const std::string& name, int64_t size) { add(name, {size}, gemma3 ? 0.0F : 1.0F, 0.1F); };

  const int64_t hidden = config.hidden_size;
  const int64_t inner = config.intermediate_size;
  matrix(prefix + "embed_tokens.weight", config.vocab_size, hidden);
  if (!config.tie_embeddings) matrix("lm_head.weight", config.vocab_size, hidden);
  norm(prefix + "norm.weight", hidden);
  for (size_t index = 0; index < config.layers.size(); ++index) {
    const LayerConfig& layer = config.layers[index];
    const std::string base = prefix + "layers." + std::to_string(index) + ".";
    const int64_t q_rows = int64_t{config.num_q_heads} * layer.head_dim;
    const int64_t kv_rows = int64_t{layer.num_kv_heads} * layer.head_dim;
    for (const char* name :
         {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"}) {
      norm(base + name + ".weight", hidden);
    }
    norm(base + "self_attn.q_norm.weight", layer.head_dim);
    norm(base + "self_attn.k_norm.weight", layer.head_dim);
    matrix(base + "self_attn.q_proj.weight", q_rows, hidden);
    matrix(base + "self_attn.k_proj.weight", kv_rows, hidden);
    if (!layer.k_eq_v) matrix(base + "self_attn.v_proj.weight", kv_rows, hidden);
    matrix(base + "self_attn.o_proj.weight", hidden, q_rows);
    matrix(base + "mlp.gate_proj.weight", inner, hidden);
    matrix(base + "mlp.up_proj.weight", inner, hidden);
    matrix(base + "mlp.down_proj.weight", hidden, inner);
    if (!gemma3) add(base + "layer_scalar", {1}, 1.0F, 0.1F);
  }
  return file;
}

}  // namespace quaver::testing
