#include "model/step_cost.h"

#include <set>
#include <string>

#include <gtest/gtest.h>

#include "model/cpu_model.h"
#include "testing/expect_error.h"
#include "testing/gemma_31b.h"

namespace quaver {
namespace {

struct Gemma31B {
  ModelConfig config = testing::gemma_31b();
  CachePlan plan = plan_cache(cache_specs(config, KvDtype::kE4M3), 64);
  [[nodiscard]] std::array<PartCost, kNumStepParts> costs(const StepLoad& load, bool fp8 = true) const {
    return step_costs(config, layer_facts(config, fp8), plan, load);
  }
};

const PartCost& of(const std::array<PartCost, kNumStepParts>& costs, StepPart part) {
  return costs.at(static_cast<size_t>(part));
}

StepLoad decode(int64_t sequences, int64_t kv_len) {
  return {.sequences = std::vector<SequenceLoad>(static_cast<size_t>(sequences), {.query_len = 1, .kv_len = kv_len}),
          .num_logit_rows = sequences};
}

// The figures of the design: one decode step of 128 sequences at 8,704 tokens.
TEST(StepCost, DecodeOfGemma31B) {
  const auto costs = Gemma31B{}.costs(decode(128, 8704));
  // 50 layers, 128 windows of 1,024 tokens, 16 heads x 512 bytes; Q and O on top (2 x 16 KB a token and layer).
  const double q_and_o = 128.0 * 2 * 2 * 32;
  EXPECT_DOUBLE_EQ(of(costs, StepPart::kSlidingAttention).bytes, 50 * (128.0 * 1024 * 8192 + q_and_o * 256));
  EXPECT_DOUBLE_EQ(of(costs, StepPart::kFullAttention).bytes, 10 * (128.0 * 8704 * 4096 + q_and_o * 512));
  EXPECT_DOUBLE_EQ(of(costs, StepPart::kFullAttention).fp8_flops, 10 * 128.0 * 8704 * 4 * 32 * 512);
  EXPECT_DOUBLE_EQ(of(costs, StepPart::kSlidingAttention).fp8_flops, 50 * 128.0 * 1024 * 4 * 32 * 256);
  double weights = 0;
  double flops = 0;
  for (const StepPart part : {StepPart::kQkvGemm, StepPart::kOutGemm, StepPart::kGateUpGemm, StepPart::kDownGemm}) {
    weights += of(costs, part).bytes;
    flops += of(costs, part).fp8_flops;
  }
  const double parameters = 50 * 478.9e6 + 10 * 534.0e6;
  EXPECT_NEAR(flops / (2 * 128 * parameters), 1, 1e-3);
  // 128 rows of E4M3 inputs and BF16 outputs: 40,448 and 48,640 columns on sliding layers, 48,640 and 50,688 on full;
  // gate_up stores 21,504.
  const double activations = 128.0 * (50 * (40448 + 2 * 48640) + 10 * (48640 + 2 * 50688));
  EXPECT_NEAR(weights / (parameters + activations), 1, 1e-3);
  EXPECT_DOUBLE_EQ(of(costs, StepPart::kLmHead).bf16_flops, 2.0 * 128 * 262144 * 5376);
  EXPECT_NEAR(of(costs, StepPart::kLmHead).bytes, 2.82e9 + 0.134e9, 0.02e9);
  double seconds = 0;
  for (const PartCost& cost : costs) seconds += least_seconds(cost);
  EXPECT_NEAR(seconds * 1e3, 30, 2);  // gemma.md 6.5 has 30.6 ms at 4.3 TB/s, without activations and logits
}

// 514.7 TFLOP for 8,192 prompt tokens: 479.8 linear, 22.0 full and 12.9 sliding attention.
TEST(StepCost, PrefillOfGemma31B) {
  const StepLoad load{.sequences = {{.query_len = 8192, .kv_len = 8192}}, .num_logit_rows = 1};
  const auto costs = Gemma31B{}.costs(load);
  double linear = 0;
  for (const StepPart part : {StepPart::kQkvGemm, StepPart::kOutGemm, StepPart::kGateUpGemm, StepPart::kDownGemm}) {
    linear += of(costs, part).fp8_flops;
    EXPECT_EQ(of(costs, part).bf16_flops, 0);
  }
  EXPECT_NEAR(linear / 1e12, 479.8, 0.1);
  EXPECT_NEAR(of(costs, StepPart::kFullAttention).fp8_flops / 1e12, 22.0, 0.1);
  EXPECT_NEAR(of(costs, StepPart::kSlidingAttention).fp8_flops / 1e12, 12.9, 0.1);
  EXPECT_DOUBLE_EQ(of(costs, StepPart::kEmbedding).bytes, 8192.0 * 2 * 5376 * 2);
  EXPECT_DOUBLE_EQ(of(costs, StepPart::kGeglu).bytes, 60 * 8192.0 * 21504 * 3);
}

// With logits of the last token alone, the last layer (a full one) has one row behind its K and V; with none, nothing.
TEST(StepCost, LastLayerOfLastTokens) {
  const Gemma31B model;
  StepLoad load{.sequences = {{.query_len = 8192, .kv_len = 8192}}, .num_logit_rows = 1, .last_tokens_only = true};
  const auto costs = model.costs(load);
  const double pairs = 8192.0 * 8193 / 2;
  EXPECT_DOUBLE_EQ(of(costs, StepPart::kFullAttention).fp8_flops, (9 * pairs + 8192) * 4 * 32 * 512);
  EXPECT_DOUBLE_EQ(of(costs, StepPart::kGateUpGemm).fp8_flops, (59 * 8192.0 + 1) * 2 * 43008 * 5376);
  EXPECT_DOUBLE_EQ(of(costs, StepPart::kGeglu).bytes, (59 * 8192.0 + 1) * 21504 * 3);
  load.num_logit_rows = 0;
  const auto none = model.costs(load);
  EXPECT_DOUBLE_EQ(of(none, StepPart::kDownGemm).fp8_flops, 59 * 8192.0 * 2 * 5376 * 21504);
  EXPECT_DOUBLE_EQ(of(none, StepPart::kQkvGemm).fp8_flops, of(costs, StepPart::kQkvGemm).fp8_flops);
}

// A chunk sees what came before it; BF16 weights move twice the bytes on other tensor cores.
TEST(StepCost, ChunksAndBf16Weights) {
  const Gemma31B model;
  const StepLoad chunk{.sequences = {{.query_len = 3, .kv_len = 10}}, .num_logit_rows = 0};
  const auto fp8 = model.costs(chunk);
  EXPECT_DOUBLE_EQ(of(fp8, StepPart::kFullAttention).fp8_flops, 9 * (8.0 + 9 + 10) * 4 * 32 * 512);
  EXPECT_EQ(of(fp8, StepPart::kSampling).bytes, 0);
  const auto bf16 = model.costs(chunk, false);
  EXPECT_EQ(of(bf16, StepPart::kQkvGemm).fp8_flops, 0);
  EXPECT_EQ(of(bf16, StepPart::kQkvGemm).bf16_flops, of(fp8, StepPart::kQkvGemm).fp8_flops);
  EXPECT_EQ(of(bf16, StepPart::kQuantize).bytes, 0);  // attention outputs are the product's input as they are
  EXPECT_GT(of(bf16, StepPart::kNorms).bytes, of(fp8, StepPart::kNorms).bytes);
  EXPECT_DOUBLE_EQ(of(bf16, StepPart::kGeglu).bytes, 59 * 3.0 * 21504 * 6);  // gate and up read, their product written
  EXPECT_EQ(of(model.costs({}), StepPart::kSlidingAttention).bytes, 0);
}

TEST(StepCost, SlowerOfMemoryAndArithmetic) {
  const Ceilings ceilings{.bytes_per_s = 10, .fp8_flops_per_s = 100, .bf16_flops_per_s = 50};
  EXPECT_DOUBLE_EQ(least_seconds({.bytes = 20, .fp8_flops = 100, .bf16_flops = 25}, ceilings), 2);
  EXPECT_DOUBLE_EQ(least_seconds({.bytes = 10, .fp8_flops = 100, .bf16_flops = 25}, ceilings), 1.5);
}

TEST(StepCost, NamesAndRefusals) {
  std::set<std::string> names;
  for (int part = 0; part < kNumStepParts; ++part) names.emplace(part_name(static_cast<StepPart>(part)));
  EXPECT_EQ(names.size(), static_cast<size_t>(kNumStepParts));
  EXPECT_FALSE(names.contains("unknown"));
  const Gemma31B model;
  testing::expect_error([&] { (void)step_costs(model.config, {}, model.plan, {}); }, ErrorKind::kInvalidArgument,
                        {"layers 0", "60"});
}

}  // namespace
}  // namespace quaver
