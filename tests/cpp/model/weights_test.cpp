// Weights by name: both families, every prefix, the tie rule (B45), K=V layers (B27), norms, missing and wrong tensors.
#include "model/weights.h"

#include <gtest/gtest.h>

#include <cstring>

#include "testing/expect_error.h"
#include "testing/temp_dir.h"
#include "testing/tiny_gemma.h"

namespace quaver {
namespace {

using nlohmann::json;
using testing::expect_error;
using testing::random_checkpoint;
using testing::SafetensorsWriter;
using testing::TempDir;

class Weights : public ::testing::Test {
 protected:
  ModelWeights load(const ModelConfig& config, const SafetensorsWriter& file,
                    KvScalePolicy policy = KvScalePolicy::kAuto) {
    file.write(folder_.path() / "model.safetensors");
    return load_weights(folder_.path(), config, policy);
  }
  void expect_refused(const ModelConfig& config, const SafetensorsWriter& file, ErrorKind kind,
                      std::initializer_list<std::string_view> parts) {
    expect_error([&] { (void)load(config, file); }, kind, parts);
  }

  const ModelConfig gemma3_ = parse_model_config(testing::tiny_gemma3_config().dump());
  const ModelConfig gemma4_ = parse_model_config(testing::tiny_gemma4_config().dump());
  TempDir folder_;
};

std::string bytes_of(const ConstTensorView& view) {
  return {static_cast<const char*>(view.data), static_cast<size_t>(view.num_elements() * dtype_bytes(view.dtype))};
}

std::vector<float> stored_floats(SafetensorsWriter& file, const std::string& name) {
  const std::string& bytes = file.tensors().at(name).bytes;
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

TEST_F(Weights, EveryMatrixIsTheStoredOneUnderEveryPrefix) {
  for (const ModelConfig& config : {gemma3_, gemma4_}) {
    for (const std::string prefix : {"model.", "model.language_model.", "language_model.model."}) {
      SafetensorsWriter file = random_checkpoint(config, 1, prefix);
      file.add_f32("model.vision_tower.patch.weight", {1, 1, 1, 1, 1, 1}, {0});  // skipped, whatever its rank
      const ModelWeights weights = load(config, file);
      const auto stored = [&](const std::string& name) { return file.tensors().at(prefix + name).bytes; };
      EXPECT_EQ(bytes_of(weights.embedding), stored("embed_tokens.weight"));
      EXPECT_EQ(weights.lm_head.weight.data, weights.embedding.data);  // tied
      ASSERT_EQ(weights.layers.size(), 3U);
      int64_t bytes = weights.embedding.num_elements() * 4;
      for (size_t index = 0; index < 3; ++index) {
        const LayerWeights& layer = weights.layers[index];
        const std::string base = "layers." + std::to_string(index) + ".";
        const std::pair<const LinearWeight*, const char*> matrices[] = {
            {&layer.q, "self_attn.q_proj"}, {&layer.k, "self_attn.k_proj"}, {&layer.v, "self_attn.v_proj"},
            {&layer.o, "self_attn.o_proj"}, {&layer.gate, "mlp.gate_proj"}, {&layer.up, "mlp.up_proj"},
            {&layer.down, "mlp.down_proj"}};
        for (const auto& [linear, name] : matrices) {
          if (!linear->given()) continue;
          EXPECT_EQ(bytes_of(linear->weight), stored(base + name + ".weight")) << base << name;
          EXPECT_EQ(linear->activation, ActivationQuant::kNone);
          bytes += linear->weight.num_elements() * 4;
        }
        EXPECT_EQ(layer.v.given(), !config.layers[index].k_eq_v);
      }
      EXPECT_EQ(weights.bytes, bytes);
    }
  }
}

TEST_F(Weights, NormsAreEffectiveMultipliers) {
  for (const ModelConfig& config : {gemma3_, gemma4_}) {
    SafetensorsWriter file = random_checkpoint(config, 2);
    const ModelWeights weights = load(config, file);
    const float offset = config.family == ModelFamily::kGemma3 ? 1.0F : 0.0F;
    const auto expect_norm = [&](const std::vector<float>& norm, const std::string& name) {
      std::vector<float> expected = stored_floats(file, "model." + name + ".weight");
      for (float& value : expected) value += offset;
      EXPECT_EQ(norm, expected) << name;
    };
    expect_norm(weights.final_norm, "norm");
    const LayerWeights& layer = weights.layers[1];
    expect_norm(layer.input_norm, "layers.1.input_layernorm");
    expect_norm(layer.post_attention_norm, "layers.1.post_attention_layernorm");
    expect_norm(layer.pre_feedforward_norm, "layers.1.pre_feedforward_layernorm");
    expect_norm(layer.post_feedforward_norm, "layers.1.post_feedforward_layernorm");
    expect_norm(layer.q_norm, "layers.1.self_attn.q_norm");
    expect_norm(layer.k_norm, "layers.1.self_attn.k_norm");
    EXPECT_EQ(layer.layer_scalar, offset == 1.0F ? 1.0F : stored_floats(file, "model.layers.1.layer_scalar")[0]);
  }
}

TEST_F(Weights, UnalignedBf16MatricesAreRight) {
  SafetensorsWriter file = random_checkpoint(gemma3_, 3);
  file.add("a_odd_byte", "U8", {1}, "x");  // sorts first and moves everything by one byte
  const ModelWeights weights = load(gemma3_, file);
  EXPECT_EQ(bytes_of(weights.layers[2].down.weight), file.tensors().at("model.layers.2.mlp.down_proj.weight").bytes);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(weights.layers[2].down.weight.data) % 4, 0U);
}

TEST_F(Weights, B45TieRuleComesFromTheConfig) {
  json untied_json = testing::tiny_gemma3_config();
  untied_json["tie_word_embeddings"] = false;
  const ModelConfig untied = parse_model_config(untied_json.dump());
  SafetensorsWriter with_head = random_checkpoint(untied, 4);
  const ModelWeights weights = load(untied, with_head);
  EXPECT_EQ(bytes_of(weights.lm_head.weight), with_head.tensors().at("lm_head.weight").bytes);
  EXPECT_NE(weights.lm_head.weight.data, weights.embedding.data);

  // Tied, and a different head is there all the same: the embedding is used and a note says so.
  const ModelWeights tied = load(gemma3_, with_head);
  EXPECT_EQ(tied.lm_head.weight.data, tied.embedding.data);
  const auto mentions_head = [](const ModelWeights& loaded) {
    for (const auto& note : loaded.notes) {
      if (note.find("lm_head.weight") != std::string::npos) return true;
    }
    return false;
  };
  EXPECT_TRUE(mentions_head(tied));
  SafetensorsWriter equal = random_checkpoint(gemma3_, 4);
  equal.add("lm_head.weight", "F32", {97, 32}, equal.tensors().at("model.embed_tokens.weight").bytes);
  EXPECT_FALSE(mentions_head(load(gemma3_, equal)));

  expect_refused(untied, random_checkpoint(gemma3_, 4), ErrorKind::kNotFound, {"lacks 1 tensors", "lm_head.weight"});
}

TEST_F(Weights, B45MissingTensorsAreAllListed) {
  SafetensorsWriter file = random_checkpoint(gemma4_, 5);
  const char* names[] = {"model.norm.weight", "model.layers.0.self_attn.v_proj.weight",
                         "model.layers.1.self_attn.k_norm.weight", "model.layers.2.layer_scalar"};
  for (const char* name : names) file.erase(name);
  expect_refused(gemma4_, file, ErrorKind::kNotFound, {"lacks 4 tensors", names[0], names[1], names[2], names[3]});
}

TEST_F(Weights, B27KEqVLayersHaveNoVProjection) {
  SafetensorsWriter file = random_checkpoint(gemma4_, 6);
  EXPECT_FALSE(load(gemma4_, file).layers[2].v.given());
  file.add_f32("model.layers.2.self_attn.v_proj.weight", {64, 32}, std::vector<float>(64 * 32));
  expect_refused(gemma4_, file, ErrorKind::kInvalidArgument,
                 {"model.layers.2.self_attn.v_proj.weight", "attention_k_eq_v"});
}

TEST_F(Weights, WrongShapesAndDtypes) {
  const std::string q = "model.layers.0.self_attn.q_proj.weight";
  const std::string norm = "model.layers.0.input_layernorm.weight";
  const auto with = [&](const std::string& name, const char* dtype, SafetensorsWriter::Shape shape, size_t bytes) {
    SafetensorsWriter file = random_checkpoint(gemma3_, 7);
    file.add(name, dtype, std::move(shape), std::string(bytes, '\0'));
    return file;
  };
  constexpr auto kKind = ErrorKind::kInvalidArgument;
  expect_refused(gemma3_, with(q, "F32", {32, 128}, 16384), kKind, {q, "F32 [32, 128]", "[128, 32]"});
  expect_refused(gemma3_, with(q, "F32", {4096}, 16384), kKind, {q, "F32 [4096]", "[128, 32]"});
  expect_refused(gemma3_, with(q, "F16", {128, 32}, 8192), kKind, {q, "F16 [128, 32]", "expected BF16, F32"});
  expect_refused(gemma3_, with(q, "I8", {128, 32}, 4096), kKind, {q, "I8 [128, 32]"});
  expect_refused(gemma3_, with(q, "F8_E5M2", {128, 32}, 4096), kKind, {q, "F8_E5M2 [128, 32]"});
  expect_refused(gemma3_, with(q, "F8_E4M3", {128, 32}, 4096), ErrorKind::kUnsupported, {q, "quantization_config"});
  expect_refused(gemma3_, with(norm, "F32", {31}, 124), kKind, {norm, "F32 [31]", "[32]"});
  expect_refused(gemma3_, with(norm, "U8", {32}, 32), kKind, {norm, "U8 [32]", "expected dtype BF16 or F32"});
  const std::string embedding = "model.embed_tokens.weight";
  expect_refused(gemma3_, with(embedding, "F8_E4M3", {97, 32}, 97 * 32), kKind, {embedding, "F8_E4M3"});
  SafetensorsWriter nan = random_checkpoint(gemma3_, 7);
  nan.add_f32(norm, {32}, std::vector<float>(32, std::nanf("")));
  expect_refused(gemma3_, nan, kKind, {norm, "nan", "finite"});
}

TEST_F(Weights, UnknownLayerTensorsAreNoted) {
  SafetensorsWriter file = random_checkpoint(gemma3_, 8);
  file.add_f32("model.layers.0.self_attn.q_proj.bias", {128}, std::vector<float>(128));
  const auto notes = load(gemma3_, file).notes;
  EXPECT_TRUE(std::any_of(notes.begin(), notes.end(), [](const auto& note) {
    return note.find("model.layers.0.self_attn.q_proj.bias") != std::string::npos;
  }));
}

}  // namespace
}  // namespace quaver
