// Gemma 3 and Gemma 4 (dense, text): configuration as read from a Hugging Face config.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace quaver {

enum class ModelFamily : uint8_t { kGemma3, kGemma4 };

/// Everything about one decoder layer that differs between layers.
struct LayerConfig {
  bool sliding = false;
  int window = 0;        ///< `sliding_window` keys, the token itself included; 0 on full-attention layers
  int head_dim = 0;      ///< `head_dim`, or `global_head_dim` on Gemma 4's full layers
  int num_kv_heads = 0;  ///< `num_key_value_heads`, or `num_global_key_value_heads`
  /// Tokens of an image see each other: all layers of Gemma 3, the sliding ones of Gemma 4 ("vision").
  bool bidirectional_spans = false;
  bool k_eq_v = false;  ///< `attention_k_eq_v` on full layers: no v_proj, V is the raw k_proj output
  double rope_theta = 1e4;
  double rope_factor = 1.0;  ///< linear scaling: inverse frequencies are divided by it
  int rotary_pairs = 0;      ///< pairs that rotate; head_dim/2, or partial_rotary_factor*head_dim/2 ("proportional")
};

/// A dense Gemma 3 or Gemma 4 text model. Field names in comments are config.json's.
struct ModelConfig {
  ModelFamily family = ModelFamily::kGemma3;
  int hidden_size = 0;
  int intermediate_size = 0;
  int num_layers = 0;   ///< `num_hidden_layers`
  int num_q_heads = 0;  ///< `num_attention_heads`
  int64_t vocab_size = 0;
  int64_t max_positions = 0;  ///< `max_position_embeddings`
  double rms_norm_eps = 1e-6;
  double attention_scale = 1;    ///< `query_pre_attn_scalar`^-0.5 (Gemma 3), 1.0 (Gemma 4)
  double attention_softcap = 0;  ///< `attn_logit_softcapping`; 0: none
  double final_softcap = 0;      ///< `final_logit_softcapping`; 0: none
  bool tie_embeddings = true;    ///< `tie_word_embeddings`
  double embedding_scale = 1;    ///< sqrt(hidden_size) rounded to the checkpoint's dtype, as transformers does
  std::vector<int> eos_token_ids;
  std::vector<LayerConfig> layers;
  std::string quantization_json;  ///< `quantization_config` (or hf_quant_config.json) verbatim; empty: not quantised
};

/// Parses the text of a config.json. `overrides_json` (or "") is merged over it first, as --hf-overrides does.
/// Throws Error(kInvalidArgument) naming the field, its value and what is accepted; Error(kUnsupported) for a family or
/// a feature that Quaver does not run (MoE, PLE, KV sharing, …).
[[nodiscard]] ModelConfig parse_model_config(std::string_view config_json, std::string_view overrides_json = {});

/// Reads DIR/config.json (and generation_config.json, hf_quant_config.json where they exist).
[[nodiscard]] ModelConfig load_model_config(const std::filesystem::path& directory,
                                            std::string_view overrides_json = {});

}  // namespace quaver
