// FP8 checkpoints: recipes, weight scales in every legal shape (B45), cache scales in every spelling (B06).
#include "model/fp8_formats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "core/e4m3.h"
#include "model/weights.h"
#include "testing/expect_error.h"
#include "testing/quant_recipes.h"
#include "testing/temp_dir.h"
#include "testing/tiny_gemma.h"

namespace quaver {
namespace {

using nlohmann::json;
using testing::expect_error;
using testing::SafetensorsWriter;

QuantRecipe parse(const json& recipe) {
  return parse_quant_recipe(recipe.dump()).value();
}

TEST(QuantRecipe, KnownFormats) {
  EXPECT_FALSE(parse_quant_recipe("").has_value());
  const json modelopt_file = {{"producer", {{"name", "modelopt"}}},
                              {"quantization", {{"quant_algo", "FP8"}, {"kv_cache_quant_algo", "FP8"}}}};
  const json per_tensor_dynamic = {{"quant_method", "fp8"}, {"activation_scheme", "dynamic"}};
  const json per_tensor_static = {{"quant_method", "fp8"}, {"activation_scheme", "static"}};
  const std::tuple<json, WeightScales, ActivationQuant> cases[] = {
      {testing::fp8_dynamic(), WeightScales::kPerChannel, ActivationQuant::kPerToken},
      {testing::fp8_block(), WeightScales::kBlock128, ActivationQuant::kPerGroup128},
      {testing::fp8_static(), WeightScales::kPerTensor, ActivationQuant::kPerTensor},
      {testing::compressed_tensors("channel", nullptr), WeightScales::kPerChannel, ActivationQuant::kNone},
      {testing::modelopt("FP8"), WeightScales::kPerTensor, ActivationQuant::kPerTensor},
      {testing::modelopt("FP8_PER_CHANNEL_PER_TOKEN"), WeightScales::kPerChannel, ActivationQuant::kPerToken},
      {testing::modelopt("FP8_PB_WO"), WeightScales::kBlock128, ActivationQuant::kNone},
      {modelopt_file, WeightScales::kPerTensor, ActivationQuant::kPerTensor},
      {testing::blocks_128(), WeightScales::kBlock128, ActivationQuant::kPerGroup128},
      {per_tensor_dynamic, WeightScales::kPerTensor, ActivationQuant::kPerToken},
      {per_tensor_static, WeightScales::kPerTensor, ActivationQuant::kPerTensor},
  };
  for (const auto& [recipe, weights, activation] : cases) {
    SCOPED_TRACE(recipe.dump());
    EXPECT_EQ(parse(recipe).weights, weights);
    EXPECT_EQ(parse(recipe).activation, activation);
  }
}

TEST(QuantRecipe, OthersAreRefusedByName) {
  const auto group = [](const char* part, const char* field, const json& value) {
    json recipe = testing::fp8_dynamic();
    recipe["config_groups"]["group_0"][part][field] = value;
    return recipe;
  };
  json two = testing::fp8_dynamic();
  two["config_groups"]["group_1"] = testing::fp8_block()["config_groups"]["group_0"];
  json no_groups = testing::fp8_dynamic();
  no_groups["config_groups"] = json::object();
  json small_blocks = testing::blocks_128();
  small_blocks["weight_block_size"] = {64, 64};
  json small_groups = testing::fp8_block();
  small_groups["config_groups"]["group_0"]["input_activations"]["group_size"] = 64;
  const std::pair<json, const char*> cases[] = {
      {{{"quant_method", "gptq"}}, "quant_method \"gptq\": expected compressed-tensors, modelopt or fp8"},
      {json::object(), "quant_method missing"},
      {testing::modelopt("NVFP4"), "quant_algo \"NVFP4\""},
      {{{"quantization", json::object()}}, "quantization.quant_algo missing"},
      {group("weights", "num_bits", 4), "weights.num_bits 4: expected 8"},
      {group("weights", "type", "int"), "weights.type \"int\": expected float"},
      {group("weights", "symmetric", false), "weights.symmetric false"},
      {group("weights", "strategy", "group"), "weights.strategy \"group\": expected tensor, channel or block"},
      {group("input_activations", "dynamic", false), "input_activations.strategy \"token\""},
      {small_groups, "group_size 64: expected 128"},
      {small_blocks, "weight_block_size [64,64]: expected [128, 128]"},
      {two, "same activations in every group"},
      {no_groups, "config_groups {}: expected at least one group"},
  };
  for (const auto& [recipe, expected] : cases) {
    SCOPED_TRACE(recipe.dump());
    expect_error([&] { (void)parse_quant_recipe(recipe.dump()); }, ErrorKind::kUnsupported, {expected});
  }
}

constexpr int64_t kN = 130;
constexpr int64_t kK = 257;

/// Scale of element (n, k) that set_weight_scales() makes of a stored scale.
std::vector<float> expand(const SafetensorsWriter& file) {
  const std::string text = file.bytes();
  const TensorMap tensors = parse_safetensors(std::as_bytes(std::span(text)), "x");
  const std::vector<uint8_t> codes(static_cast<size_t>(kN * kK), 0x38);
  LinearWeight linear;
  linear.weight = {codes.data(), DType::kE4M3, {kN, kK}};
  set_weight_scales(linear, tensors.at("w"), "w");
  const int64_t columns = (kK + linear.block_k - 1) / linear.block_k;
  std::vector<float> scales;
  for (int64_t n = 0; n < kN; ++n) {
    for (int64_t k = 0; k < kK; ++k) {
      scales.push_back(linear.scale.at(static_cast<size_t>(n / linear.block_n * columns + k / linear.block_k)));
    }
  }
  return scales;
}

TEST(WeightScalesTest, B45EveryLegalShapeGivesTheSameMatrix) {
  std::vector<float> rows(kN);
  std::iota(rows.begin(), rows.end(), 1.0F);  // 1 … 130, all exact in BF16
  std::vector<float> expected;
  for (const float row : rows) expected.insert(expected.end(), kK, row);
  for (const SafetensorsWriter::Shape& shape : {SafetensorsWriter::Shape{kN}, SafetensorsWriter::Shape{kN, 1}}) {
    SafetensorsWriter f32;
    f32.add_f32("w", shape, rows);
    EXPECT_EQ(expand(f32), expected);
    SafetensorsWriter bf16;
    bf16.add_bf16("w", shape, rows);
    EXPECT_EQ(expand(bf16), expected);
  }
  for (const SafetensorsWriter::Shape& shape :
       {SafetensorsWriter::Shape{}, SafetensorsWriter::Shape{1}, SafetensorsWriter::Shape{1, 1}}) {
    SafetensorsWriter file;
    file.add_f32("w", shape, {0.5F});
    EXPECT_EQ(expand(file), std::vector<float>(static_cast<size_t>(kN * kK), 0.5F));
  }
  const std::vector<float> blocks = {1, 2, 3, 4, 5, 6};  // [ceil(130/128), ceil(257/128)] = [2, 3]
  std::vector<float> blocked;
  for (int64_t n = 0; n < kN; ++n) {
    for (int64_t k = 0; k < kK; ++k) blocked.push_back(static_cast<float>(n / 128 * 3 + k / 128 + 1));
  }
  for (const SafetensorsWriter::Shape& shape : {SafetensorsWriter::Shape{2, 3}, SafetensorsWriter::Shape{2, 1, 3, 1}}) {
    SafetensorsWriter file;
    file.add_f32("w", shape, blocks);
    EXPECT_EQ(expand(file), blocked);
  }
}

TEST(WeightScalesTest, B45IllegalShapesAndB06IllegalValues) {
  for (const SafetensorsWriter::Shape& shape :
       {SafetensorsWriter::Shape{kN - 1}, SafetensorsWriter::Shape{3}, SafetensorsWriter::Shape{1, kN},
        SafetensorsWriter::Shape{3, 2}, SafetensorsWriter::Shape{0}}) {
    int64_t count = 1;
    for (const int64_t dim : shape) count *= dim;
    SafetensorsWriter file;
    file.add_f32("w", shape, std::vector<float>(static_cast<size_t>(count), 1.0F));
    expect_error([&] { (void)expand(file); }, ErrorKind::kInvalidArgument, {"w F32 [", "expected [], [1], [130]"});
  }
  const std::pair<float, const char*> values[] = {{0.0F, "w 0 in x:"},
                                                  {-1.0F, "w -1 in x:"},
                                                  {std::numeric_limits<float>::quiet_NaN(), "w nan in x:"},
                                                  {std::numeric_limits<float>::infinity(), "w inf in x:"}};
  for (const auto& [value, expected] : values) {
    std::vector<float> rows(kN, 1.0F);
    rows[77] = value;
    SafetensorsWriter file;
    file.add_f32("w", {kN}, rows);
    expect_error([&] { (void)expand(file); }, ErrorKind::kInvalidArgument, {expected, "positive, finite"});
  }
}

/// A tiny Gemma whose layer-0 q_proj is E4M3 codes of 1.0; cache scales as the test adds them.
class Fp8Checkpoint : public ::testing::Test {
 protected:
  Fp8Checkpoint() { file_.add_e4m3(kQ + ".weight", {128, 32}, std::vector<uint8_t>(128 * 32, 0x38)); }

  static ModelConfig config(const json& recipe, bool gemma3 = true) {
    json text = gemma3 ? testing::tiny_gemma3_config() : testing::tiny_gemma4_config();
    text["quantization_config"] = recipe;
    return parse_model_config(text.dump());
  }
  ModelWeights load(const ModelConfig& config, KvScalePolicy policy = KvScalePolicy::kAuto) {
    file_.write(folder_.path() / "model.safetensors");
    return load_weights(folder_.path(), config, policy);
  }

  const std::string kQ = "model.layers.0.self_attn.q_proj";
  const std::string kAttention = "model.layers.0.self_attn.";
  SafetensorsWriter file_ = testing::random_checkpoint(config(nullptr), 11);
  testing::TempDir folder_;
};

TEST_F(Fp8Checkpoint, OnlyModulesWithE4M3WeightsAreQuantised) {
  file_.add_bf16(kQ + ".weight_scale", {128, 1}, std::vector<float>(128, 0.25F));
  const ModelWeights weights = load(config(testing::fp8_dynamic()));
  const LinearWeight& q = weights.layers[0].q;
  EXPECT_EQ(q.weight.dtype, DType::kE4M3);
  EXPECT_EQ(q.scale, std::vector<float>(128, 0.25F));
  EXPECT_EQ(q.block_n, 1);
  EXPECT_EQ(q.block_k, 32);
  EXPECT_EQ(q.activation, ActivationQuant::kPerToken);
  EXPECT_EQ(weights.layers[0].k.activation, ActivationQuant::kNone);
  EXPECT_EQ(weights.layers[1].q.weight.dtype, DType::kF32);
}

TEST_F(Fp8Checkpoint, StaticInputScalesInBothSpellings) {
  file_.add_f32(kQ + ".weight_scale", {}, {0.5F});
  expect_error([&] { (void)load(config(testing::modelopt("FP8"))); }, ErrorKind::kNotFound, {kQ + ".input_scale"});
  file_.add_f32(kQ + ".input_scale", {}, {0.125F});
  const LinearWeight q = load(config(testing::modelopt("FP8"))).layers[0].q;
  EXPECT_EQ(q.input_scale, 0.125F);
  EXPECT_EQ(q.scale, std::vector<float>{0.5F});
  EXPECT_EQ(q.block_n, 128);
  EXPECT_EQ(q.block_k, 32);
  file_.add_f32(kQ + ".input_scale", {1}, {0.0F});
  expect_error([&] { (void)load(config(testing::fp8_static())); }, ErrorKind::kInvalidArgument,
               {kQ + ".input_scale 0", "positive"});
  file_.erase(kQ + ".input_scale");
  file_.add_f32(kQ + ".activation_scale", {1}, {2.0F});
  EXPECT_EQ(load(config(testing::fp8_static())).layers[0].q.input_scale, 2.0F);
}

TEST_F(Fp8Checkpoint, BlockScalesUnderTheirOtherName) {
  file_.add_f32(kQ + ".weight_scale_inv", {1, 1}, {0.5F});
  EXPECT_EQ(load(config(testing::blocks_128())).layers[0].q.scale, std::vector<float>{0.5F});
  file_.erase(kQ + ".weight_scale_inv");
  expect_error([&] { (void)load(config(testing::blocks_128())); }, ErrorKind::kNotFound, {kQ + ".weight_scale"});
}

class KvScales : public Fp8Checkpoint {
 protected:
  KvScales() { file_ = testing::random_checkpoint(config(nullptr), 12); }
};

TEST_F(KvScales, EverySpelling) {
  const std::pair<const char*, const char*> spellings[] = {{"k_scale", "v_scale"},
                                                           {"attn.k_scale", "attn.v_scale"},
                                                           {"k_proj.k_scale", "v_proj.v_scale"},
                                                           {"k_proj.output_scale", "v_proj.output_scale"},
                                                           {"kv_scale", "kv_scale"},
                                                           {"attn.kv_scale", "attn.kv_scale"}};
  for (const auto& [k, v] : spellings) {
    SCOPED_TRACE(k);
    file_ = testing::random_checkpoint(config(nullptr), 12);
    file_.add_f32(kAttention + k, {1}, {0.25F});
    file_.add_bf16(kAttention + v, {}, {0.5F});
    const ModelWeights weights = load(config(nullptr));
    const float expected_k = std::string(k) == v ? 0.5F : 0.25F;
    EXPECT_EQ(weights.layers[0].k_scale, std::vector<float>{expected_k});
    EXPECT_EQ(weights.layers[0].v_scale, std::vector<float>{0.5F});
    EXPECT_EQ(load(config(nullptr), KvScalePolicy::kOne).layers[0].k_scale, std::vector<float>{1.0F});
  }
}

TEST_F(KvScales, OnePerHead) {
  const ModelConfig gemma4 = config(nullptr, /*gemma3=*/false);
  file_ = testing::random_checkpoint(gemma4, 12);
  file_.add_f32(kAttention + "k_scale", {2, 1, 1}, {0.25F, 0.75F});
  file_.add_f32("model.layers.2.self_attn.v_proj.v_scale", {1}, {0.5F});  // a K=V layer, which has no v_proj
  const ModelWeights weights = load(gemma4);
  EXPECT_EQ(weights.layers[0].k_scale, (std::vector<float>{0.25F, 0.75F}));
  EXPECT_EQ(weights.layers[2].v_scale, std::vector<float>{0.5F});
  file_.add_f32(kAttention + "k_scale", {3}, {1, 1, 1});
  expect_error([&] { (void)load(gemma4); }, ErrorKind::kInvalidArgument,
               {kAttention + "k_scale F32 [3]", "each of 2 kv heads"});
}

TEST_F(KvScales, B06IllegalValuesAreRefusedByName) {
  for (const float value :
       {0.0F, -1.0F, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    file_.add_f32(kAttention + "v_scale", {1}, {value});
    expect_error([&] { (void)load(config(nullptr)); }, ErrorKind::kInvalidArgument, {kAttention + "v_scale"});
  }
}

TEST_F(KvScales, B06MissingScalesAreDerivedSoThatNothingClips) {
  for (const bool gemma3 : {true, false}) {
    const ModelConfig shape = config(nullptr, gemma3);
    file_ = testing::random_checkpoint(shape, 13);
    const ModelWeights weights = load(shape);
    ASSERT_EQ(weights.notes.size(), 1U);
    EXPECT_NE(weights.notes[0].find("3 of 3 layers"), std::string::npos) << weights.notes[0];
    for (size_t index = 0; index < 3; ++index) {
      const LayerWeights& layer = weights.layers[index];
      const float root = std::sqrt(static_cast<float>(shape.layers[index].head_dim));
      float largest = 0;
      for (const float multiplier : layer.k_norm) largest = std::max(largest, std::fabs(multiplier));
      EXPECT_LE(root * largest / layer.k_scale[0], kE4M3Max);          // nothing clips,
      EXPECT_GT(root * largest / layer.k_scale[0], kE4M3Max / 2.01F);  // and no more than a bit of range is lost
      if (gemma3) {
        EXPECT_EQ(layer.v_scale[0], 1.0F);  // V is not normed: no bound
      } else {
        EXPECT_LE(root / layer.v_scale[0], kE4M3Max);
        EXPECT_GT(root / layer.v_scale[0], kE4M3Max / 2.01F);
      }
    }
    const ModelWeights ones = load(shape, KvScalePolicy::kOne);
    EXPECT_TRUE(ones.notes.empty());
    EXPECT_EQ(ones.layers[1].k_scale[0], 1.0F);
    EXPECT_EQ(ones.layers[1].v_scale[0], 1.0F);
  }
}

}  // namespace
}  // namespace quaver
