#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "model/batch_builder.h"
#include "model/cpu_model.h"
#include "ops/sampling.h"
#include "quaver/error.h"
#include "testing/temp_dir.h"
#include "testing/tiny_generator.h"

namespace quaver {
namespace {

// A model with its own cache, stepped by hand.
struct Stepper {
  CpuModel model;
  KvManager manager;
  HostKvCache cache;
  BatchBuilder builder;
  Batch batch;

  Stepper(CpuModel cpu_model, KvDtype dtype)
      : model(std::move(cpu_model)),
        manager(plan_cache(cache_specs(model.config(), dtype), 16), 64, false),
        cache(manager.plan(), 64) {}

  // Logits of the last token of each sequence.
  std::vector<float> step(std::vector<SequencePages*> sequences, std::vector<std::vector<int32_t>> tokens,
                          const LayerObserver& observer = {}) {
    std::vector<std::vector<int32_t>> rows;
    for (const auto& list : tokens) rows.push_back({static_cast<int32_t>(list.size()) - 1});
    builder.begin(manager, batch);
    for (size_t i = 0; i < sequences.size(); ++i) {
      EXPECT_TRUE(manager.append(*sequences[i], static_cast<int64_t>(tokens[i].size())).empty());
      builder.add(manager, {.pages = *sequences[i], .tokens = tokens[i], .logit_rows = rows[i]}, batch);
    }
    const std::span<const float> hidden = model.forward(batch, cache, observer);
    std::vector<float> logits(sequences.size() * static_cast<size_t>(model.config().vocab_size));
    model.logits(hidden, logits.data());
    return logits;
  }
};

CpuModel random_model(const nlohmann::json& config_json, const CpuModelOptions& options = {}) {
  const testing::TempDir folder;
  ModelConfig config = parse_model_config(config_json.dump());
  testing::random_checkpoint(config, 3).write(folder.path() / "model.safetensors");
  ModelWeights weights = load_weights(folder.path(), config);
  return {std::move(config), std::move(weights), options};
}

// B25, B42: prefill and decode of three sequences at once give each the bits it gets alone.
TEST(Forward, BatchEqualsEachSequenceAlone) {
  const std::vector<std::vector<int32_t>> prompts{testing::random_tokens(5, 1), testing::random_tokens(23, 2),
                                                  testing::random_tokens(1, 3)};
  for (const nlohmann::json& config : {testing::tiny_gemma3_config(), testing::tiny_gemma4_config()}) {
    for (const KvDtype dtype : {KvDtype::kE4M3, KvDtype::kBF16}) {
      Stepper together(random_model(config, {.batch_invariant = true}), dtype);
      std::vector<SequencePages> pages(3);
      std::vector<SequencePages*> all{&pages[0], &pages[1], &pages[2]};
      std::vector<std::vector<float>> batched{together.step(all, prompts)};
      for (int i = 0; i < 3; ++i) batched.push_back(together.step(all, {{7}, {8, 9, 10}, {11}}));
      for (size_t s = 0; s < 3; ++s) {
        Stepper alone(random_model(config, {.batch_invariant = true}), dtype);
        SequencePages own;
        const std::vector<std::vector<int32_t>> next{{7}, {8, 9, 10}, {11}};
        for (size_t i = 0; i < batched.size(); ++i) {
          const std::vector<float> logits = alone.step({&own}, {i == 0 ? prompts[s] : next[s]});
          const auto begin = batched[i].begin() + static_cast<int64_t>(s * 97);
          EXPECT_EQ(std::vector<float>(begin, begin + 97), logits) << config["model_type"] << " step " << i;
        }
      }
    }
  }
}

// Idle sequences may stay in a batch as rows without query tokens, whatever their lengths and tables say.
TEST(Forward, EmptyRowsChangeNothing) {
  for (nlohmann::json config : {testing::tiny_gemma3_config(), testing::tiny_gemma4_config()}) {
    config["head_dim"] = 64;  // that the emulation takes
    for (const AttentionKernel kernel : {AttentionKernel::kCpu, AttentionKernel::kCpuEmulated}) {
      Stepper stepper(random_model(config, {.attention_kernel = kernel}), KvDtype::kE4M3);
      SequencePages a;
      SequencePages b;
      const std::vector<float> expected = stepper.step({&a, &b}, {testing::random_tokens(9, 1), {8, 9}});
      Batch batch = stepper.batch;
      batch.query_start = {0, 0, 9, 9, 11, 11};
      batch.seq_lens = {0, 9, 7, 2, 0};
      for (Batch::Group& group : batch.groups) {
        const std::vector<int32_t> idle(static_cast<size_t>(group.max_pages), -1);
        auto& table = group.block_table;
        table.insert(table.begin(), idle.begin(), idle.end());
        table.insert(table.begin() + int64_t{2} * group.max_pages, idle.begin(), idle.end());
        table.insert(table.end(), idle.begin(), idle.end());
      }
      std::vector<float> logits(expected.size());
      stepper.model.logits(stepper.model.forward(batch, stepper.cache), logits.data());
      EXPECT_EQ(logits, expected) << config["model_type"] << " " << kernel_name(kernel);
    }
  }
}

// One Gemma 4 layer whose projections are the identity and whose V is K; every token embeds to [3, 4, 0, 0].
CpuModel identity_model() {
  static const std::vector<float> identity{1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1};
  static const std::vector<float> embedding{3, 4, 0, 0, 3, 4, 0, 0};
  const LinearWeight unit{.weight = ConstTensorView(identity.data(), DType::kF32, {4, 4})};
  ModelConfig config{.family = ModelFamily::kGemma4,
                     .hidden_size = 4,
                     .intermediate_size = 4,
                     .num_layers = 1,
                     .num_q_heads = 1,
                     .vocab_size = 2,
                     .max_positions = 64,
                     .rms_norm_eps = 0.0,
                     .eos_token_ids = {},
                     .layers = {{.head_dim = 4, .num_kv_heads = 1, .k_eq_v = true, .rotary_pairs = 2}},
                     .quantization_json = {}};
  const std::vector<float> ones(4, 1.0F);
  LayerWeights layer;
  layer.input_norm = std::vector<float>(4, 2.5F);  // rms of [3, 4, 0, 0]: the normed row is the row again
  layer.post_attention_norm = layer.pre_feedforward_norm = layer.post_feedforward_norm = layer.q_norm = ones;
  layer.k_norm = std::vector<float>(4, 2.0F);
  layer.q = layer.k = layer.o = layer.gate = layer.up = layer.down = unit;
  ModelWeights weights;
  weights.embedding = ConstTensorView(embedding.data(), DType::kF32, {2, 4});
  weights.lm_head = {.weight = weights.embedding};
  weights.final_norm = ones;
  weights.layers.push_back(layer);
  return {std::move(config), std::move(weights)};
}

// B27: V is the raw K projection after a norm without weight: independent of position and of the k_norm weight.
TEST(Forward, KEqualsVLayersTakeTheRawProjection) {
  Stepper stepper(identity_model(), KvDtype::kBF16);
  SequencePages pages;
  int calls = 0;
  (void)stepper.step({&pages}, {std::vector<int32_t>(8, 1)}, [&](const LayerObservation& seen) {
    ++calls;
    for (size_t position = 0; position < 8; ++position) {
      const float* const v = seen.v.data() + position * 4;
      EXPECT_FLOAT_EQ(v[0], 1.2F);
      EXPECT_FLOAT_EQ(v[1], 1.6F);
      EXPECT_EQ(v[2], 0.0F);
      EXPECT_EQ(v[3], 0.0F);
    }
    const float* const k = seen.k.data() + size_t{7} * 4;  // twice that, turned by 7 and 0.07 rad
    EXPECT_NEAR(k[0], 2.4 * std::cos(7.0), 1e-6);
    EXPECT_NEAR(k[1], 3.2 * std::cos(0.07), 1e-6);
    EXPECT_NEAR(k[2], 2.4 * std::sin(7.0), 1e-6);
    EXPECT_NEAR(k[3], 3.2 * std::sin(0.07), 1e-6);
    // All V rows are equal, so attention returns them whatever the logits (rounded to the cache's BF16).
    EXPECT_NEAR(seen.attention[28], 1.2, 0.005);
    EXPECT_NEAR(seen.attention[29], 1.6, 0.005);
  });
  EXPECT_EQ(calls, 1);
}

// B30: positions and lengths count all tokens, not those inside the window: 12 tokens, window 4.
TEST(Forward, PositionsCountTheWholeSequence) {
  nlohmann::json config = testing::tiny_gemma3_config();
  config["sliding_window"] = 4;
  Stepper stepper(random_model(config), KvDtype::kE4M3);
  SequencePages pages;
  (void)stepper.step({&pages}, {testing::random_tokens(12)});
  (void)stepper.step({&pages}, {{9}});
  EXPECT_EQ(stepper.batch.positions, std::vector<int32_t>{12});
  EXPECT_EQ(stepper.batch.seq_lens, std::vector<int32_t>{13});
}

TEST(Forward, RefusesBatchesThatContradictThemselves) {
  Stepper stepper(random_model(testing::tiny_gemma3_config()), KvDtype::kE4M3);
  SequencePages pages;
  (void)stepper.step({&pages}, {{5, 6, 7}});
  const auto refused = [&](const auto& spoil) {
    Batch batch = stepper.batch;
    spoil(batch);
    EXPECT_THROW((void)stepper.model.forward(batch, stepper.cache), Error);
  };
  refused([](Batch& b) { b.token_ids[1] = 97; });
  refused([](Batch& b) { b.token_ids[1] = -1; });
  refused([](Batch& b) { b.positions.pop_back(); });
  refused([](Batch& b) { b.query_start.back() = 2; });
  refused([](Batch& b) { b.query_start.front() = 1; });
  refused([](Batch& b) { b.groups.pop_back(); });
  refused([](Batch& b) { b.groups[0].slots.pop_back(); });
  refused([](Batch& b) { b.groups[0].slots[0] = int64_t{1} << 40; });
  refused([](Batch& b) { b.groups[0].max_pages = 9; });
  refused([](Batch& b) { b.logit_rows = {3}; });
  refused([](Batch& b) { b = Batch{}; });
}

// B29: Gemma 3 27B scales queries by (hidden / heads)^-0.5 = 168^-0.5, not by head_dim^-0.5.
TEST(Forward, QueryScaleComesFromTheConfiguration) {
  nlohmann::json config = testing::tiny_gemma3_config();
  config["query_pre_attn_scalar"] = 168;
  EXPECT_NEAR(parse_model_config(config.dump()).attention_scale, 0.0771517, 1e-7);
  SequencePages a;
  SequencePages b;
  const std::vector<int32_t> tokens = testing::random_tokens(10);
  Stepper scaled(random_model(config), KvDtype::kBF16);
  Stepper plain(random_model(testing::tiny_gemma3_config()), KvDtype::kBF16);
  EXPECT_NE(scaled.step({&a}, {tokens}), plain.step({&b}, {tokens}));
}

}  // namespace
}  // namespace quaver
