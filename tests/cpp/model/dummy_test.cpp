// Dummy weights: true shapes, in range, the same for the same seed whatever the number of threads.
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "core/bf16.h"
#include "core/e4m3.h"
#include "model/dummy.h"
#include "model/weights.h"
#include "testing/quant_recipes.h"
#include "testing/tiny_gemma.h"

namespace quaver {
namespace {

ModelConfig tiny(bool gemma3, const nlohmann::json& recipe = nullptr) {
  nlohmann::json config = gemma3 ? testing::tiny_gemma3_config() : testing::tiny_gemma4_config();
  config["quantization_config"] = recipe;
  config["hidden_size"] = 320;  // not a multiple of 128; more than one random chunk a matrix
  config["intermediate_size"] = 611;
  return parse_model_config(config.dump());
}

std::vector<const LinearWeight*> matrices(const LayerWeights& layer) {
  return {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down};
}

std::string bytes_of(const ConstTensorView& view) {
  return {static_cast<const char*>(view.data), static_cast<size_t>(view.num_elements() * dtype_bytes(view.dtype))};
}

std::vector<float> values(const LinearWeight& linear) {
  const std::string bytes = bytes_of(linear.weight);
  const int64_t n = linear.out_features();
  const int64_t k = linear.in_features();
  std::vector<float> result;
  for (int64_t i = 0; i < n * k; ++i) {
    if (linear.weight.dtype == DType::kBF16) {
      Bf16 stored;
      std::memcpy(&stored, bytes.data() + i * 2, 2);
      result.push_back(to_float(stored));
    } else {
      const int64_t columns = (k + linear.block_k - 1) / linear.block_k;
      const int64_t place = i / k / linear.block_n * columns + i % k / linear.block_k;
      result.push_back(e4m3_decode(static_cast<uint8_t>(bytes[static_cast<size_t>(i)])) *
                       linear.scale.at(static_cast<size_t>(place)));
    }
  }
  return result;
}

void expect_unit_variance(const LinearWeight& linear) {
  const std::vector<float> all = values(linear);
  double sum = 0;
  double squares = 0;
  for (const float value : all) {
    ASSERT_TRUE(std::isfinite(value));
    sum += value;
    squares += static_cast<double>(value) * value;
  }
  const auto count = static_cast<double>(all.size());
  const auto inputs = static_cast<double>(linear.in_features());
  EXPECT_NEAR(sum / count * std::sqrt(inputs), 0, 5 / std::sqrt(count));
  EXPECT_NEAR(squares / count * inputs, 1, 0.05);  // the smallest matrix has 10,240 values: deviation 0.014
}

TEST(Dummy, ShapesRangesAndScales) {
  const nlohmann::json recipes[] = {nullptr, testing::fp8_dynamic(), testing::fp8_block(), testing::fp8_static()};
  for (const auto& recipe : recipes) {
    for (const bool gemma3 : {true, false}) {
      const ModelConfig config = tiny(gemma3, recipe);
      const ModelWeights weights = dummy_weights(config, 7);
      EXPECT_EQ(weights.embedding.dtype, DType::kBF16);
      EXPECT_EQ(to_string(weights.embedding), "bf16[97, 320] on cpu");
      EXPECT_EQ(weights.lm_head.weight.data, weights.embedding.data);
      EXPECT_EQ(weights.final_norm, std::vector<float>(320, 1.0F));
      ASSERT_EQ(weights.layers.size(), 3U);
      int64_t bytes = 97 * 320 * 2;
      for (size_t index = 0; index < 3; ++index) {
        const LayerConfig& shape = config.layers[index];
        const LayerWeights& layer = weights.layers[index];
        EXPECT_EQ(layer.v.given(), !shape.k_eq_v);
        EXPECT_EQ(layer.q.out_features(), 4 * shape.head_dim);
        EXPECT_EQ(layer.k.out_features(), shape.num_kv_heads * shape.head_dim);
        EXPECT_EQ(layer.o.in_features(), 4 * shape.head_dim);
        EXPECT_EQ(layer.down.in_features(), 611);
        EXPECT_EQ(layer.layer_scalar, 1.0F);
        EXPECT_EQ(layer.k_scale.size(), static_cast<size_t>(shape.num_kv_heads));
        EXPECT_EQ(layer.v_scale.size(), static_cast<size_t>(shape.num_kv_heads));
        // |q|·|k| <= sqrt(D)·q_norm · sqrt(D)·k_norm, times the attention scale: sqrt(D) for logits of variance 1
        EXPECT_NEAR(double{layer.q_norm[0]} * double{layer.k_norm[0]} * shape.head_dim * config.attention_scale,
                    std::sqrt(shape.head_dim), 1e-5);
        for (const LinearWeight* linear : matrices(layer)) {
          if (!linear->given()) continue;
          EXPECT_EQ(linear->weight.dtype, recipe.is_null() ? DType::kBF16 : DType::kE4M3);
          bytes += linear->weight.num_elements() * dtype_bytes(linear->weight.dtype);
          expect_unit_variance(*linear);
        }
      }
      EXPECT_EQ(weights.bytes, bytes);
    }
  }
}

// Zeros would run faster than real data, small values too: the codes reach over the whole finite range.
TEST(Dummy, CodesOverTheWholeRange) {
  const std::vector<uint8_t> codes = dummy_codes();
  ASSERT_EQ(codes.size(), 65536U);
  EXPECT_EQ(codes.front(), 0xFE);
  EXPECT_EQ(codes.back(), 0x7E);
  EXPECT_TRUE(std::ranges::none_of(codes, e4m3_is_nan));
  EXPECT_GE(std::set<uint8_t>(codes.begin(), codes.end()).size(),
            230U);  // of 254: near zero they are finer than the table
}

// Streams and draws are counters: no two matrices share bits, and a draw needs no other.
TEST(Dummy, BitsByCounter) {
  std::set<uint64_t> seen;
  for (int64_t ordinal = 1; ordinal <= 20; ++ordinal) {
    for (int64_t draw = 0; draw < 50; ++draw) seen.insert(dummy_bits(dummy_stream(7, ordinal), draw));
  }
  EXPECT_EQ(seen.size(), 1000U);
  // SplitMix64 of the paper's authors from the seed 1234567 begins with these numbers.
  EXPECT_EQ(dummy_bits(1234567, 0), 6457827717110365317U);
  EXPECT_EQ(dummy_bits(1234567, 1), 3203168211198807973U);
}

TEST(Dummy, FollowsTheRecipe) {
  const LinearWeight channel = dummy_weights(tiny(true, testing::fp8_dynamic()), 1).layers[0].gate;
  EXPECT_EQ(channel.activation, ActivationQuant::kPerToken);
  EXPECT_EQ(channel.scale.size(), 611U);
  const LinearWeight block = dummy_weights(tiny(true, testing::fp8_block()), 1).layers[0].gate;
  EXPECT_EQ(block.activation, ActivationQuant::kPerGroup128);
  EXPECT_EQ(block.scale.size(), 5U * 3U);
  const LinearWeight tensor = dummy_weights(tiny(true, testing::fp8_static()), 1).layers[0].gate;
  EXPECT_EQ(tensor.activation, ActivationQuant::kPerTensor);
  EXPECT_EQ(tensor.scale.size(), 1U);
  EXPECT_LT(tensor.input_scale, 1.0F);
}

TEST(Dummy, DependsOnTheSeedOnly) {
  const ModelConfig config = tiny(false, testing::fp8_dynamic());
  const int threads = omp_get_max_threads();
  const ModelWeights first = dummy_weights(config, 3);
  omp_set_num_threads(3);
  const ModelWeights second = dummy_weights(config, 3);
  omp_set_num_threads(threads);
  const ModelWeights other = dummy_weights(config, 4);
  EXPECT_EQ(bytes_of(first.embedding), bytes_of(second.embedding));
  EXPECT_NE(bytes_of(first.embedding), bytes_of(other.embedding));
  for (size_t index = 0; index < 3; ++index) {
    const auto a = matrices(first.layers[index]);
    const auto b = matrices(second.layers[index]);
    for (size_t i = 0; i < a.size(); ++i) {
      if (a[i]->given()) {
        EXPECT_EQ(bytes_of(a[i]->weight), bytes_of(b[i]->weight));
      }
    }
  }
  EXPECT_NE(bytes_of(first.layers[0].gate.weight), bytes_of(first.layers[0].up.weight));
  EXPECT_NE(bytes_of(first.layers[0].gate.weight), bytes_of(first.layers[1].gate.weight));
}

}  // namespace
}  // namespace quaver
