// Gemma 4 31B: as `--model gemma-4-31b` has it (FP8 weights per channel), and what every form of its config.json says.
#pragma once

#include <gtest/gtest.h>

#include "quaver/model.h"

namespace quaver::testing {

inline ModelConfig gemma_31b() {
  return load_model_config(QUAVER_SOURCE_DIR "/python/quaver/model_facts/gemma-4-31b");
}

inline void expect_gemma4_31b(const ModelConfig& config) {
  EXPECT_EQ(config.family, ModelFamily::kGemma4);
  EXPECT_EQ(config.attention_scale, 1.0);
  EXPECT_EQ(config.final_softcap, 30.0);
  EXPECT_EQ(config.embedding_scale, 73.5);  // sqrt(5376) in BF16
  ASSERT_EQ(config.layers.size(), 60U);
  for (size_t index = 0; index < 60; ++index) {
    const LayerConfig& layer = config.layers[index];
    const bool full = index % 6 == 5;
    EXPECT_EQ(layer.sliding, !full);
    EXPECT_EQ(layer.window, full ? 0 : 1024);
    EXPECT_EQ(layer.head_dim, full ? 512 : 256);
    EXPECT_EQ(layer.num_kv_heads, full ? 4 : 16);
    EXPECT_EQ(layer.k_eq_v, full);
    EXPECT_EQ(layer.rope_theta, full ? 1e6 : 1e4);
    EXPECT_EQ(layer.rotary_pairs, full ? 64 : 128);  // 64 of 256 pairs rotate
  }
}

}  // namespace quaver::testing
