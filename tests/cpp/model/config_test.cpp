// config.json of the real models, in the spellings of old and new transformers. Expected values: docs of the models and
// B29, B30, B31 of the fault list; none was computed by our code.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "quaver/model.h"
#include "testing/gemma_31b.h"
#include "testing/temp_dir.h"
#include "testing/tiny_gemma.h"

namespace quaver {
namespace {

using nlohmann::json;

ModelConfig parse(const json& config, const std::string& overrides = "") {
  return parse_model_config(config.dump(), overrides);
}

json gemma3_270m() {
  return {{"architectures", {"Gemma3ForCausalLM"}},
          {"model_type", "gemma3_text"},
          {"head_dim", 256},
          {"hidden_activation", "gelu_pytorch_tanh"},
          {"hidden_size", 640},
          {"intermediate_size", 2048},
          {"max_position_embeddings", 32768},
          {"num_attention_heads", 4},
          {"num_hidden_layers", 18},
          {"num_key_value_heads", 1},
          {"query_pre_attn_scalar", 256},
          {"rms_norm_eps", 1e-6},
          {"rope_local_base_freq", 10000.0},
          {"rope_scaling", nullptr},
          {"rope_theta", 1000000.0},
          {"sliding_window", 512},
          {"eos_token_id", {1, 106}},
          {"torch_dtype", "bfloat16"},
          {"attn_logit_softcapping", nullptr},
          {"final_logit_softcapping", nullptr},
          {"use_bidirectional_attention", false},
          {"vocab_size", 262144}};
}

/// The Hub's multimodal files name little and leave the rest to transformers' defaults.
json gemma3_4b() {
  return {{"architectures", {"Gemma3ForConditionalGeneration"}},
          {"model_type", "gemma3"},
          {"eos_token_id", {1, 106}},
          {"torch_dtype", "bfloat16"},
          {"vision_config", {{"hidden_size", 1152}, {"model_type", "siglip_vision_model"}}},
          {"text_config",
           {{"hidden_size", 2560},
            {"intermediate_size", 10240},
            {"model_type", "gemma3_text"},
            {"num_hidden_layers", 34},
            {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}},
            {"sliding_window", 1024}}}};
}

json gemma4_31b() {
  json types = json::array();
  for (int layer = 0; layer < 60; ++layer) {
    types.push_back((layer + 1) % 6 == 0 ? "full_attention" : "sliding_attention");
  }
  return {{"architectures", {"Gemma4ForConditionalGeneration"}},
          {"model_type", "gemma4"},
          {"eos_token_id", {1, 106}},
          {"dtype", "bfloat16"},
          {"tie_word_embeddings", true},
          {"text_config",
           {{"model_type", "gemma4_text"},
            {"dtype", "bfloat16"},
            {"eos_token_id", 1},
            {"hidden_size", 5376},
            {"intermediate_size", 21504},
            {"num_hidden_layers", 60},
            {"num_attention_heads", 32},
            {"num_key_value_heads", 16},
            {"num_global_key_value_heads", 4},
            {"head_dim", 256},
            {"global_head_dim", 512},
            {"attention_k_eq_v", true},
            {"sliding_window", 1024},
            {"max_position_embeddings", 262144},
            {"num_kv_shared_layers", 0},
            {"hidden_size_per_layer_input", 0},
            {"enable_moe_block", false},
            {"final_logit_softcapping", 30.0},
            {"use_bidirectional_attention", "vision"},
            {"layer_types", types},
            {"rope_parameters",
             {{"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 10000.0}}},
              {"full_attention",
               {{"rope_type", "proportional"}, {"partial_rotary_factor", 0.25}, {"rope_theta", 1000000.0}}}}},
            {"vocab_size", 262144}}}};
}

/// Inverse frequency of a pair, from LayerConfig's definition.
double inverse_frequency(const LayerConfig& layer, int pair) {
  if (pair >= layer.rotary_pairs) return 0;
  return std::pow(layer.rope_theta, -2.0 * pair / layer.head_dim) / layer.rope_factor;
}

TEST(Config, Gemma3With270M) {
  const ModelConfig config = parse(gemma3_270m());
  EXPECT_EQ(config.family, ModelFamily::kGemma3);
  EXPECT_EQ(config.hidden_size, 640);
  EXPECT_EQ(config.intermediate_size, 2048);
  EXPECT_EQ(config.num_q_heads, 4);
  EXPECT_EQ(config.vocab_size, 262144);
  EXPECT_EQ(config.max_positions, 32768);
  EXPECT_EQ(config.attention_scale, 1.0 / 16);
  EXPECT_EQ(config.attention_softcap, 0);
  EXPECT_EQ(config.final_softcap, 0);
  EXPECT_TRUE(config.tie_embeddings);
  EXPECT_EQ(config.embedding_scale, 25.25);  // sqrt(640) = 25.298 in bf16
  EXPECT_EQ(config.eos_token_ids, (std::vector<int>{1, 106}));
  EXPECT_TRUE(config.quantization_json.empty());
  ASSERT_EQ(config.layers.size(), 18U);
  for (int index = 0; index < 18; ++index) {
    const LayerConfig& layer = config.layers[static_cast<size_t>(index)];
    const bool full = index == 5 || index == 11 || index == 17;
    EXPECT_EQ(layer.sliding, !full);
    EXPECT_EQ(layer.window, full ? 0 : 512);
    EXPECT_EQ(layer.head_dim, 256);  // not hidden / heads = 160
    EXPECT_EQ(layer.num_kv_heads, 1);
    EXPECT_FALSE(layer.k_eq_v);
    EXPECT_EQ(layer.rope_theta, full ? 1e6 : 1e4);
    EXPECT_EQ(layer.rope_factor, 1);
    EXPECT_EQ(layer.rotary_pairs, 128);
  }
}

TEST(Config, B30LayerPatternIsZeroBasedAndLayerTypesWin) {
  json config = gemma3_270m();
  config["num_hidden_layers"] = 26;
  std::vector<int> full;
  for (int i = 0; const auto& layer : parse(config).layers) {
    if (!layer.sliding) full.push_back(i);
    ++i;
  }
  EXPECT_EQ(full, (std::vector<int>{5, 11, 17, 23}));

  config["num_hidden_layers"] = 3;
  config["sliding_window_pattern"] = 2;
  EXPECT_FALSE(parse(config).layers[1].sliding);
  config["layer_types"] = {"full_attention", "sliding_attention", "sliding_attention"};
  EXPECT_FALSE(parse(config).layers[0].sliding);
  EXPECT_TRUE(parse(config).layers[1].sliding);
}

TEST(Config, MultimodalGemma3TakesDefaultsAndNestedFields) {
  const ModelConfig config = parse(gemma3_4b());
  EXPECT_EQ(config.num_q_heads, 8);
  EXPECT_EQ(config.vocab_size, 262208);
  EXPECT_EQ(config.max_positions, 131072);
  EXPECT_EQ(config.layers[0].num_kv_heads, 4);
  EXPECT_EQ(config.layers[0].head_dim, 256);
  EXPECT_EQ(config.layers[0].window, 1024);
  EXPECT_EQ(config.embedding_scale, 50.5);
  EXPECT_EQ(config.eos_token_ids, (std::vector<int>{1, 106}));
}

TEST(Config, B29RopeScalingOnFullLayersOnly) {
  json newer = gemma3_4b();
  newer["text_config"].erase("rope_scaling");
  newer["text_config"]["rope_parameters"] = {
      {"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 1e6}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}}};
  json oldest = gemma3_4b();
  oldest["text_config"]["rope_scaling"] = {{"factor", 8.0}, {"type", "linear"}};
  for (const json& config : {gemma3_4b(), newer, oldest}) {
    const auto layers = parse(config).layers;
    const LayerConfig& local = layers[0];
    const LayerConfig& global = layers[5];
    const auto angle = [](const LayerConfig& layer, int pair) { return 4096 * inverse_frequency(layer, pair); };
    EXPECT_NEAR(std::cos(angle(local, 0)), 0.803991, 1e-6);
    EXPECT_NEAR(std::sin(angle(local, 0)), -0.594642, 1e-6);
    EXPECT_NEAR(std::cos(angle(global, 0)), -0.996833, 1e-6);
    EXPECT_NEAR(std::sin(angle(global, 0)), 0.079518, 1e-6);
    EXPECT_NEAR(std::cos(angle(local, 1)), -0.643916, 1e-6);
    EXPECT_NEAR(std::cos(angle(global, 1)), 0.587133, 1e-6);
  }
}

TEST(Config, B29QueryScaleOf27BIsNotFromHeadDim) {
  json config = gemma3_4b();
  config["text_config"].update(
      {{"hidden_size", 5376}, {"num_attention_heads", 32}, {"num_key_value_heads", 16}, {"head_dim", 128}});
  config["text_config"]["query_pre_attn_scalar"] = 168;
  EXPECT_NEAR(parse(config).attention_scale, 0.0771517, 1e-7);
}

TEST(Config, B29EmbeddingScaleRoundsToTheCheckpointsDtype) {
  const std::pair<int, double> cases[] = {{1152, 34.0}, {2560, 50.5},  {3840, 62.0}, {5376, 73.5},
                                          {2816, 53.0}, {1536, 39.25}, {640, 25.25}};
  for (const auto& [hidden, expected] : cases) {
    json config = gemma3_270m();
    config["hidden_size"] = hidden;
    EXPECT_EQ(parse(config).embedding_scale, expected) << hidden;
  }
  json config = gemma3_270m();
  config["torch_dtype"] = "float32";
  EXPECT_FLOAT_EQ(static_cast<float>(parse(config).embedding_scale), 25.298221F);
  config["dtype"] = "bfloat16";  // the newer name wins
  EXPECT_EQ(parse(config).embedding_scale, 25.25);
}

TEST(Config, Gemma4With31B) {
  testing::expect_gemma4_31b(parse(gemma4_31b()));
  json defaults = gemma4_31b();  // rope and layer types as Gemma4TextConfig defaults them
  defaults["text_config"].erase("rope_parameters");
  defaults["text_config"].erase("layer_types");
  testing::expect_gemma4_31b(parse(defaults));
  json flat = gemma4_31b()["text_config"];
  flat["architectures"] = {"Gemma4ForCausalLM"};
  testing::expect_gemma4_31b(parse(flat));
}

TEST(Config, Gemma4SavedByNewerTransformersHasPerLayerConfig) {
  json config = gemma4_31b();
  json& text = config["text_config"];
  text.erase("global_head_dim");
  text.erase("num_global_key_value_heads");
  for (int layer = 5; layer < 60; layer += 6) {
    text["per_layer_config"][std::to_string(layer)] = {{"head_dim", 512}, {"num_key_value_heads", 4}};
  }
  testing::expect_gemma4_31b(parse(config));
  text["per_layer_config"] = json::object();  // nothing differs from the general values
  EXPECT_EQ(parse(config).layers[5].head_dim, 256);
  EXPECT_EQ(parse(config).layers[5].num_kv_heads, 16);
}

TEST(Config, Gemma4LastLayerIsFullWhateverTheFileSays) {
  json config = testing::tiny_gemma4_config();
  config["layer_types"] = {"sliding_attention", "sliding_attention", "sliding_attention"};
  const auto layers = parse(config).layers;
  EXPECT_TRUE(layers[1].sliding);
  EXPECT_FALSE(layers[2].sliding);
  EXPECT_TRUE(layers[2].k_eq_v);
}

TEST(Config, Gemma4WithoutKEqVKeepsTheGeneralKvHeads) {
  json config = testing::tiny_gemma4_config();
  config["attention_k_eq_v"] = false;
  const auto layers = parse(config).layers;
  EXPECT_EQ(layers[2].num_kv_heads, 2);
  EXPECT_FALSE(layers[2].k_eq_v);
}

TEST(Config, OverridesMergeIntoNestedObjects) {
  const ModelConfig config =
      parse(gemma4_31b(), R"({"text_config": {"sliding_window": 512, "use_bidirectional_attention": null}})");
  EXPECT_EQ(config.layers[0].window, 512);
  EXPECT_EQ(config.layers[0].head_dim, 256);
  for (const LayerConfig& layer : config.layers) EXPECT_FALSE(layer.bidirectional_spans);  // null: as E2B and E4B
}

// Images: transformers' create_masks_for_vision_model of either family.
TEST(Config, WhichLayersSeeImagesInBothDirections) {
  for (const LayerConfig& layer : parse(gemma4_31b()).layers) EXPECT_EQ(layer.bidirectional_spans, layer.sliding);
  for (const LayerConfig& layer : parse(testing::tiny_gemma3_config()).layers) EXPECT_TRUE(layer.bidirectional_spans);
}

TEST(Config, LoadMergesGenerationAndQuantFiles) {
  const testing::TempDir folder;
  folder.write("config.json", gemma4_31b().dump());
  EXPECT_EQ(load_model_config(folder.path()).eos_token_ids, (std::vector<int>{1, 106}));
  folder.write("generation_config.json", R"({"eos_token_id": [1, 106, 50], "top_k": 64})");
  folder.write("hf_quant_config.json", R"({"quantization": {"quant_algo": "FP8"}})");
  const ModelConfig config = load_model_config(folder.path());
  EXPECT_EQ(config.eos_token_ids, (std::vector<int>{1, 106, 50}));  // B31
  EXPECT_NE(config.quantization_json.find("FP8"), std::string::npos);
  json with_config = gemma4_31b();  // config.json's own recipe wins
  with_config["quantization_config"] = {{"quant_method", "fp8"}};
  folder.write("config.json", with_config.dump());
  EXPECT_EQ(json::parse(load_model_config(folder.path()).quantization_json)["quant_method"], "fp8");
}

}  // namespace
}  // namespace quaver
