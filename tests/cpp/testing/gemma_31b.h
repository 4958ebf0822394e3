// The facts of google/gemma-4-31B's config.json, for tests of sizes: nothing of that model is ever loaded here.
#pragma once

#include <string>

#include "quaver/model.h"

namespace quaver::testing {

inline ModelConfig gemma_31b() {
  return parse_model_config(R"({
    "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text",
    "vocab_size": 262144, "hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 60,
    "num_attention_heads": 32, "num_key_value_heads": 16, "num_global_key_value_heads": 4,
    "head_dim": 256, "global_head_dim": 512, "attention_k_eq_v": true, "hidden_size_per_layer_input": 0,
    "sliding_window": 1024, "final_logit_softcapping": 30.0, "max_position_embeddings": 262144,
    "eos_token_id": [1, 106], "dtype": "bfloat16"})");
}

}  // namespace quaver::testing
