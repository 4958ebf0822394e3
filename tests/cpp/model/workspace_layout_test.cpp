#include "model/workspace_layout.h"

#include <array>

#include <gtest/gtest.h>

#include "model/ropes.h"
#include "testing/gemma_31b.h"
#include "testing/tiny_gemma.h"

namespace quaver {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

std::vector<LinearInput> inputs_of(const ModelConfig& config, InputKind kind) {
  std::vector<LinearInput> inputs;
  for (const LayerConfig& layer : config.layers) {
    inputs.push_back({.width = config.hidden_size, .kind = kind});
    inputs.push_back({.width = int64_t{config.num_q_heads} * layer.head_dim, .kind = kind});
    inputs.push_back({.width = config.intermediate_size, .kind = kind});
  }
  return inputs;
}

// By hand: 8,192 prompt tokens and 128 decode rows of Gemma 4 31B, FP8 per token; logits of 128 rows.
TEST(WorkspaceLayout, Gemma31B) {
  const ModelConfig config = testing::gemma_31b();
  const int64_t tokens = 8320;
  const WorkspaceLayout layout = workspace_layout(config, inputs_of(config, InputKind::kPerToken), true,
                                                  {.max_tokens = tokens, .max_sequences = 128, .max_logit_rows = 128});
  const int64_t stream = tokens * 5376 * 2;
  const int64_t attention = tokens * (18432 + 16384) * 2;  // qkv and attention of full layers: more than 21,504 columns
  const int64_t input = tokens * 21504;                    // 65 blocks of 128 rows
  const int64_t rope = tokens * (256 + 128) * 4;
  EXPECT_EQ(layout.bytes, 2 * stream + attention + input + tokens * 4 + rope + 2 * 128 * 5376 * 2 + 128 * 262144 * 4);
  EXPECT_EQ(layout.gate_up, layout.qkv);
  EXPECT_EQ(layout.attention - layout.qkv, tokens * 18432 * 2);
  EXPECT_GT(layout.bytes, kGiB);
  EXPECT_LT(layout.bytes, 5 * kGiB / 4);
  const WorkspaceLayout apart = workspace_layout(config, inputs_of(config, InputKind::kPerToken), false,
                                                 {.max_tokens = tokens, .max_sequences = 128, .max_logit_rows = 128});
  EXPECT_EQ(apart.bytes - layout.bytes, tokens * 43008 * 2 - attention);
}

// Everything in its own place, but gate_up where qkv and attention were.
TEST(WorkspaceLayout, PartsDoNotOverlap) {
  for (const auto& json : {testing::tiny_gemma3_config(), testing::tiny_gemma4_config()}) {
    const ModelConfig config = parse_model_config(json.dump());
    for (const InputKind kind : {InputKind::kBf16, InputKind::kPerToken, InputKind::kPerBlock, InputKind::kStatic}) {
      for (const int64_t tokens : {1, 7, 128, 129}) {
        const bool gated = kind == InputKind::kPerToken;
        const WorkspaceLayout layout = workspace_layout(
            config, inputs_of(config, kind), gated, {.max_tokens = tokens, .max_sequences = 2, .max_logit_rows = 3});
        const int64_t hidden = tokens * 32 * 2;
        EXPECT_GE(layout.last_hidden, layout.hidden + hidden);
        EXPECT_GE(layout.projected, layout.last_hidden + 2 * 32 * 2);
        EXPECT_GE(layout.qkv, layout.projected + hidden);
        EXPECT_GE(layout.input, layout.attention + tokens * 4 * 32 * 2);
        EXPECT_GE(layout.input, layout.gate_up + tokens * (gated ? 1 : 2) * 48 * 2);
        const int64_t padded_rows = (tokens + 127) / 128 * 128;
        const int64_t widest = config.family == ModelFamily::kGemma4 ? 256 : 128;  // Hq * head dim, in chunks of 128
        EXPECT_GE(layout.input_scales - layout.input,
                  kind == InputKind::kBf16 ? tokens * widest * 2 : padded_rows * widest);
        const std::array<int64_t, 4> scales{0, tokens * 4, widest / 128 * ((tokens + 7) / 8 * 8) * 4, 4};
        EXPECT_GE(layout.rope.front() - layout.input_scales, scales.at(static_cast<size_t>(kind)));
        EXPECT_EQ(layout.bytes % 256, 0);
        EXPECT_EQ(layout.logits % 256, 0);
        EXPECT_GE(layout.logits - layout.final_hidden, 3 * 32 * 2);
        EXPECT_GE(layout.bytes - layout.logits, 3 * 97 * 4);
      }
    }
  }
}

TEST(WorkspaceLayout, RopeShapesAreDistinct) {
  const auto [shapes, of_layer] = model_ropes(testing::gemma_31b());
  ASSERT_EQ(shapes.size(), 2U);
  EXPECT_EQ(shapes[0], (RopeShape{.head_dim = 256, .rotary_pairs = 128, .theta = 1e4}));
  EXPECT_EQ(shapes[1], (RopeShape{.head_dim = 512, .rotary_pairs = 64, .theta = 1e6}));
  ASSERT_EQ(of_layer.size(), 60U);
  for (size_t layer = 0; layer < 60; ++layer) EXPECT_EQ(of_layer[layer], layer % 6 == 5 ? 1U : 0U) << layer;
  EXPECT_EQ(block_scale_stride(1), 8);
  EXPECT_EQ(block_scale_stride(8320), 8320);
}

}  // namespace
}  // namespace quaver
