// Where the rows of a checkpoint go in GPU memory: every byte and every scale against the file itself.
#include "model/device_weight_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "testing/expect_error.h"
#include "testing/fp8_checkpoint.h"
#include "testing/temp_dir.h"
#include "testing/weight_image.h"

namespace quaver {
namespace {

using nlohmann::json;
using packed_fp8::SumOrder;
using testing::expect_error;
using testing::SafetensorsWriter;

class DeviceWeightPlanTest : public ::testing::Test {
 protected:
  /// The weights stay alive for the plan's views.
  DeviceWeightPlan plan(const ModelConfig& config, const SafetensorsWriter& file, SumOrder order = SumOrder::kAny) {
    file.write(folder_.path() / "model.safetensors");
    weights_ = load_weights(folder_.path(), config);
    return plan_device_weights(weights_, config, order);
  }
  void expect_refused(const ModelConfig& config, const SafetensorsWriter& file,
                      std::initializer_list<std::string_view> parts) {
    expect_error([&] { (void)plan(config, file); }, ErrorKind::kUnsupported, parts);
  }

  testing::TempDir folder_;
  ModelWeights weights_;
};

std::vector<float> floats_of(const SafetensorsWriter::Tensor& tensor) {
  const bool bf16 = tensor.dtype == "BF16";
  std::vector<float> values(tensor.bytes.size() / (bf16 ? 2 : 4));
  for (size_t i = 0; i < values.size(); ++i) {
    if (bf16) {
      Bf16 narrow;
      std::memcpy(&narrow, tensor.bytes.data() + i * 2, 2);
      values[i] = to_float(narrow);
    } else {
      std::memcpy(&values[i], tensor.bytes.data() + i * 4, 4);
    }
  }
  return values;
}

std::vector<float> span_of(const DeviceWeightPlan& plan, const FloatSpan& span) {
  const auto begin = plan.floats.begin() + span.begin;
  return {begin, begin + span.size};
}

struct Expected {
  const PlannedWeight* weight;
  std::vector<std::string> modules;  ///< in the order of their rows
};

std::vector<Expected> expected_of(const PlannedLayer& layer, const LayerConfig& shape, const std::string& base) {
  std::vector<std::string> qkv{base + "self_attn.q_proj", base + "self_attn.k_proj"};
  if (!shape.k_eq_v) qkv.push_back(base + "self_attn.v_proj");
  return {{&layer.qkv, qkv},
          {&layer.o, {base + "self_attn.o_proj"}},
          {&layer.gate_up, {base + "mlp.gate_proj", base + "mlp.up_proj"}},
          {&layer.down, {base + "mlp.down_proj"}}};
}

/// Codes and scales of one weight against the tensors of the file.
void expect_fp8(const DeviceWeightPlan& plan, const std::vector<uint8_t>& image, const Expected& expected,
                SafetensorsWriter& file) {
  const PlannedWeight& weight = *expected.weight;
  const std::vector<float> scales = span_of(plan, weight.scales);
  const bool blocks = weight.format == WeightFormat::kBlock;
  const int64_t k_blocks = (weight.k + 127) / 128;
  // Gate and up of rows with their own scales take turns, 8 rows each, where the product applies the gate; everything
  // else is one after the other.
  const bool in_turn = expected.modules.front().ends_with("gate_proj") && !blocks && plan.order == SumOrder::kAny;
  EXPECT_EQ(weight.gated, in_turn);
  int64_t first = 0;
  for (const std::string& module : expected.modules) {
    const SafetensorsWriter::Tensor& stored = file.tensors().at(module + ".weight");
    const std::vector<float> stored_scales = floats_of(file.tensors().at(module + ".weight_scale"));
    ASSERT_EQ(stored.shape[1], weight.k);
    for (int64_t row = 0; row < stored.shape[0]; ++row) {
      const int64_t packed = in_turn ? row / 8 * 16 + (first > 0 ? 8 : 0) + row % 8 : first + row;
      for (int64_t column = 0; column < weight.k; ++column) {
        const int64_t at = weight.offset + packed_fp8::packed_offset(packed, column, weight.k);
        ASSERT_EQ(image[static_cast<size_t>(at)],
                  static_cast<uint8_t>(stored.bytes[static_cast<size_t>(row * weight.k + column)]))
            << module << " " << row << ", " << column;
        const int64_t stored_at = stored_scales.size() == 1 ? 0 : blocks ? row / 128 * k_blocks + column / 128 : row;
        const int64_t scale_at = blocks ? packed / 128 * k_blocks + column / 128 : packed;
        ASSERT_EQ(scales.at(static_cast<size_t>(scale_at)), stored_scales.at(static_cast<size_t>(stored_at)));
      }
    }
    first += stored.shape[0];
  }
  EXPECT_EQ(weight.n, first);
  EXPECT_EQ(weight.bytes, packed_fp8::packed_bytes(first, weight.k));
  EXPECT_EQ(std::ssize(scales), blocks ? (first + 127) / 128 * k_blocks : first);
}

TEST_F(DeviceWeightPlanTest, EveryCodeAndScaleOfTheFp8Formats) {
  struct Format {
    json recipe;
    WeightScales layout;
    InputKind input;
    WeightFormat format;
  };
  const Format formats[] = {
      {testing::fp8_dynamic(), WeightScales::kPerChannel, InputKind::kPerToken, WeightFormat::kOuter},
      {testing::fp8_block(), WeightScales::kBlock128, InputKind::kPerBlock, WeightFormat::kBlock},
      {testing::fp8_static(), WeightScales::kPerTensor, InputKind::kStatic, WeightFormat::kOuter}};
  for (const Format& format : formats) {
    for (const auto& [gemma3, order] :
         {std::pair{true, SumOrder::kAny}, {false, SumOrder::kAny}, {true, SumOrder::kFixed}}) {
      const ModelConfig config = testing::fp8_model(gemma3, format.recipe);
      SafetensorsWriter file = testing::fp8_checkpoint(config, format.layout, format.input == InputKind::kStatic);
      const DeviceWeightPlan plan = this->plan(config, file, order);
      const std::vector<uint8_t> image = testing::weight_image(plan);
      ASSERT_EQ(plan.layers.size(), 3U);
      EXPECT_EQ(plan.layers[2].qkv.parts.size(), gemma3 ? 3U : 2U);  // Gemma 4's full layer takes V from K
      for (size_t index = 0; index < 3; ++index) {
        const std::string base = "model.layers." + std::to_string(index) + ".";
        for (const Expected& expected : expected_of(plan.layers[index], config.layers[index], base)) {
          SCOPED_TRACE(expected.weight->name);
          EXPECT_EQ(expected.weight->format, format.format);
          EXPECT_EQ(expected.weight->input, format.input);
          expect_fp8(plan, image, expected, file);
        }
      }
    }
  }
}

// A file of F32 tensors: rounded to BF16, embedding and tied head once.
TEST_F(DeviceWeightPlanTest, Bf16AndNorms) {
  for (const bool tied : {true, false}) {
    const ModelConfig config = testing::fp8_model(false, nullptr, {{"tie_word_embeddings", tied}});
    SafetensorsWriter file = testing::random_checkpoint(config, 4);
    const DeviceWeightPlan plan = this->plan(config, file);
    const std::vector<uint8_t> image = testing::weight_image(plan);
    EXPECT_EQ(plan.lm_head.has_value(), !tied);
    const auto expect_bf16 = [&](const Expected& expected) {
      const PlannedWeight& weight = *expected.weight;
      SCOPED_TRACE(weight.name);
      EXPECT_EQ(weight.input, InputKind::kBf16);
      size_t at = static_cast<size_t>(weight.offset);
      for (const std::string& module : expected.modules) {
        for (const float value : floats_of(file.tensors().at(module + ".weight"))) {
          Bf16 stored;
          std::memcpy(&stored, image.data() + at, 2);
          at += 2;
          ASSERT_EQ(stored, to_bf16(value));
        }
      }
      EXPECT_EQ(static_cast<int64_t>(at), weight.offset + weight.bytes);
    };
    expect_bf16({&plan.embedding, {"model.embed_tokens"}});
    if (plan.lm_head) expect_bf16({&*plan.lm_head, {"lm_head"}});
    EXPECT_EQ(span_of(plan, plan.final_norm), floats_of(file.tensors().at("model.norm.weight")));
    for (size_t index = 0; index < 3; ++index) {
      const std::string base = "model.layers." + std::to_string(index) + ".";
      const PlannedLayer& layer = plan.layers[index];
      for (const Expected& expected : expected_of(layer, config.layers[index], base)) expect_bf16(expected);
      const std::pair<const FloatSpan*, const char*> norms[] = {
          {&layer.input_norm, "input_layernorm"},
          {&layer.post_attention_norm, "post_attention_layernorm"},
          {&layer.pre_feedforward_norm, "pre_feedforward_layernorm"},
          {&layer.post_feedforward_norm, "post_feedforward_layernorm"},
          {&layer.q_norm, "self_attn.q_norm"},
          {&layer.k_norm, "self_attn.k_norm"}};
      for (const auto& [span, name] : norms) {
        EXPECT_EQ(span_of(plan, *span), floats_of(file.tensors().at(base + name + ".weight"))) << name;
      }
      EXPECT_EQ(span_of(plan, layer.k_scale), weights_.layers[index].k_scale);
      EXPECT_EQ(span_of(plan, layer.v_scale), weights_.layers[index].v_scale);
      EXPECT_EQ(layer.layer_scalar, floats_of(file.tensors().at(base + "layer_scalar")).front());
    }
    EXPECT_NE(std::ranges::find_if(plan.notes, [](const auto& note) { return note.find("F32") != note.npos; }),
              plan.notes.end());
  }
}

TEST_F(DeviceWeightPlanTest, NothingOverlapsAndAddressesAreAligned) {
  const ModelConfig config = testing::fp8_model(true, testing::fp8_dynamic());
  const DeviceWeightPlan plan = this->plan(config, testing::fp8_checkpoint(config, WeightScales::kPerChannel));
  std::vector<const PlannedWeight*> all{&plan.embedding};
  for (const PlannedLayer& layer : plan.layers) {
    for (const PlannedWeight* weight : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) all.push_back(weight);
  }
  int64_t end = 0;
  for (const PlannedWeight* weight : all) {
    EXPECT_EQ(weight->offset % 256, 0) << weight->name;
    EXPECT_GE(weight->offset, end) << weight->name;
    EXPECT_LT(weight->offset, end + 256) << weight->name;
    end = weight->offset + weight->bytes;
  }
  EXPECT_GE(plan.floats_offset, end);
  EXPECT_EQ(plan.floats_offset % 256, 0);
  EXPECT_EQ(plan.layers[1].q_norm.begin % 64, 0);
  EXPECT_EQ(plan.bytes, plan.floats_offset + std::ssize(plan.floats) * 4);
}

// Static scales: the largest clips nowhere.
TEST_F(DeviceWeightPlanTest, FusedPartsShareTheLargestInputScale) {
  const ModelConfig config = testing::fp8_model(true, testing::modelopt("FP8"));
  SafetensorsWriter file = testing::fp8_checkpoint(config, WeightScales::kPerTensor, true);
  const std::string attention = "model.layers.1.self_attn.";
  file.add_f32(attention + "q_proj.input_scale", {}, {0.03F});
  file.add_f32(attention + "k_proj.input_scale", {}, {0.5F});
  file.add_f32(attention + "v_proj.input_scale", {}, {0.04F});
  const DeviceWeightPlan plan = this->plan(config, file);
  EXPECT_EQ(plan.layers[1].qkv.static_scale, 0.5F);
  EXPECT_EQ(plan.layers[1].o.static_scale, weights_.layers[1].o.input_scale);
  ASSERT_FALSE(plan.notes.empty());
  EXPECT_NE(plan.notes.back().find("take"), std::string::npos);
}

// Weight-only FP8: values in BF16, each within half a unit in the last place of code * scale.
TEST_F(DeviceWeightPlanTest, WeightOnlyIsWidened) {
  const ModelConfig config = testing::fp8_model(true, testing::modelopt("FP8_PB_WO"));
  SafetensorsWriter file = testing::fp8_checkpoint(config, WeightScales::kBlock128);
  const DeviceWeightPlan plan = this->plan(config, file);
  const PlannedWeight& weight = plan.layers[0].gate_up;
  EXPECT_EQ(weight.format, WeightFormat::kBf16);
  EXPECT_EQ(weight.scales.size, 0);
  const std::vector<uint8_t> image = testing::weight_image(plan);
  const auto& codes = file.tensors().at("model.layers.0.mlp.up_proj.weight").bytes;
  const std::vector<float> scales = floats_of(file.tensors().at("model.layers.0.mlp.up_proj.weight_scale"));
  for (int64_t row = 0; row < 384; ++row) {
    for (int64_t column = 0; column < 160; ++column) {
      Bf16 stored;
      std::memcpy(&stored, image.data() + weight.offset + ((384 + row) * 160 + column) * 2, 2);
      const double exact =
          static_cast<double>(e4m3_decode(static_cast<uint8_t>(codes[static_cast<size_t>(row * 160 + column)]))) *
          static_cast<double>(scales[static_cast<size_t>(row / 128 * 2 + column / 128)]);
      ASSERT_NEAR(static_cast<double>(to_float(stored)), exact, std::abs(exact) * 0x1p-8);
    }
  }
  EXPECT_EQ(plan.notes.size(), 2U);  // and the embedding is F32
}

TEST_F(DeviceWeightPlanTest, WhatNoProductComputesIsRefusedByName) {
  const ModelConfig channel = testing::fp8_model(true, testing::fp8_dynamic());
  SafetensorsWriter file = testing::fp8_checkpoint(channel, WeightScales::kPerChannel);
  const std::string k = "model.layers.1.self_attn.k_proj";
  file.add_bf16(k + ".weight", {128, 160}, std::vector<float>(128 * 160, 0.5F));
  expect_refused(channel, file, {k + ".weight in ", "model.safetensors bf16", "model.layers.1.self_attn.q_proj"});

  file = testing::fp8_checkpoint(channel, WeightScales::kBlock128);
  expect_refused(channel, file, {"model.layers.0.self_attn.q_proj.weight in ", "scale per row"});

  const ModelConfig block = testing::fp8_model(true, testing::fp8_block());
  file = testing::fp8_checkpoint(block, WeightScales::kPerChannel);
  expect_refused(block, file, {"model.layers.0.self_attn.q_proj.weight in ", "128x128 blocks"});

  const ModelConfig narrow = testing::fp8_model(true, testing::fp8_block(), {{"num_key_value_heads", 1}});
  file = testing::fp8_checkpoint(narrow, WeightScales::kBlock128);
  expect_refused(narrow, file, {"model.layers.0.self_attn.v_proj.weight in ", "320 rows", "multiple of 128"});
}

TEST(RowsPerChunk, WholeGroupsWhereTheyFit) {
  EXPECT_EQ(rows_per_chunk(5376, 16 << 20), 3120);
  EXPECT_EQ(rows_per_chunk(100, 799), 7);
  EXPECT_EQ(rows_per_chunk(100, 1700), 16);
  EXPECT_EQ(rows_per_chunk(100, 99), 1);
}

}  // namespace
}  // namespace quaver
