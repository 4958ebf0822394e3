// Memory of Gemma 4 31B on a GPU, against figures worked out by hand.
#include "model/device_memory.h"

#include <gtest/gtest.h>

#include "model/cpu_model.h"
#include "testing/gemma_31b.h"
#include "testing/quant_recipes.h"

namespace quaver {
namespace {

constexpr double kGiB = 1 << 30;

DeviceMemory memory_31b(KvDtype dtype, const nlohmann::json& recipe, int64_t max_model_len = 9216) {
  ModelConfig config = testing::gemma_31b();
  config.quantization_json = recipe.is_null() ? "" : recipe.dump();
  const CachePlan plan = plan_cache(cache_specs(config, dtype), 64);
  return device_memory(config, plan,
                       {.max_model_len = max_model_len,
                        .chunk_tokens = 8192,
                        .step = {.max_tokens = 8320, .max_sequences = 128, .max_logit_rows = 128}});
}

// The committed configuration, against the table of the released one.
TEST(Gemma31B, Facts) {
  const ModelConfig config = testing::gemma_31b();
  testing::expect_gemma4_31b(config);
  EXPECT_EQ(config.max_positions, 262144);
  EXPECT_EQ(config.vocab_size, 262144);
  EXPECT_TRUE(config.tie_embeddings);
  EXPECT_EQ(config.eos_token_ids, (std::vector<int>{1, 106, 50}));
}

// 60 layers of 479 (local) and 534 MB (global), the embedding once, a float a row for scales; norms are 6 MB.
TEST(DeviceMemory, WeightsOfGemma31B) {
  const int64_t local = (8192 + 2 * 4096) * 5376 + 5376 * 8192 + 3 * 21504 * 5376;
  const int64_t global = (16384 + 2048) * 5376 + 5376 * 16384 + 3 * 21504 * 5376;
  EXPECT_EQ(local, 478937088);   // 478.9 M
  EXPECT_EQ(global, 533987328);  // 534.0 M
  const int64_t matrices = 50 * int64_t{local} + 10 * int64_t{global} + int64_t{262144} * 5376 * 2;
  const int64_t rows = 50 * (16384 + 5376 + 43008 + 5376) + 10 * (18432 + 5376 + 43008 + 5376);
  EXPECT_EQ(rows, 4229120);  // 4.23 M scales per channel
  const int64_t norms = 60 * 4 * 5376 + 50 * 2 * 256 + 10 * 2 * 512 + 5376 + 2 * (50 * 16 + 10 * 4);
  const DeviceMemory memory = memory_31b(KvDtype::kE4M3, testing::fp8_dynamic());
  EXPECT_GE(memory.weights, matrices + 4 * (rows + norms));
  EXPECT_LT(memory.weights, matrices + 4 * (rows + norms) + 60 * 12 * 256);  // arrays begin on 256 bytes
  EXPECT_NEAR(static_cast<double>(memory.weights) / kGiB, 29.9, 0.05);
  EXPECT_NEAR(static_cast<double>(memory_31b(KvDtype::kE4M3, nullptr).weights) / kGiB, 57.2, 0.05);
  // 1.79 M block scales
  const DeviceMemory block = memory_31b(KvDtype::kE4M3, testing::fp8_block());
  EXPECT_NEAR(static_cast<double>(block.weights - matrices - 4 * norms) / 4e6, 1.79, 0.05);
}

// 797 MB at 9,216 tokens, plus at most a page a layer where the window begins inside one.
TEST(DeviceMemory, CacheOfOneSequence) {
  const DeviceMemory fp8 = memory_31b(KvDtype::kE4M3, testing::fp8_dynamic());
  const double window_page = 50 * 524288;
  EXPECT_EQ(fp8.block, 10 * 524288);
  EXPECT_NEAR(static_cast<double>(fp8.sequence), 797e6 + window_page, 1e6);
  EXPECT_NEAR(128 * static_cast<double>(fp8.sequence) / kGiB, 98.1, 0.05);
  EXPECT_NEAR(static_cast<double>(fp8.chunk_pages) / kGiB, 3.1, 0.05);
  const DeviceMemory bf16 = memory_31b(KvDtype::kBF16, testing::fp8_dynamic());
  EXPECT_EQ(bf16.sequence, 2 * fp8.sequence);
}

// What 139 GiB hold besides the weights and 4 GB: 142 sequences by 797 MB, 137 by whole pages; with a BF16 cache 68.
TEST(DeviceMemory, WhatFitsOnOneH200) {
  const auto bytes = static_cast<int64_t>(139 * kGiB);
  DeviceMemory memory = memory_31b(KvDtype::kE4M3, testing::fp8_dynamic());
  EXPECT_NEAR(static_cast<double>(memory.total(128)) / kGiB, 131.2 + 1.2, 0.2);  // 1.2 GiB of workspace
  EXPECT_LE(memory.total(128), static_cast<int64_t>(0.97 * static_cast<double>(bytes)));
  memory.workspace = 4000000000;
  memory.chunk_pages = 0;
  EXPECT_EQ(memory.sequences_in(bytes), 137);
  EXPECT_EQ(memory.sequences_in(memory.total(0) - 1), 0);
  EXPECT_EQ(memory.sequences_in(memory.total(3)), 3);
  memory.sequence = 797000000;
  EXPECT_NEAR(static_cast<double>(memory.sequences_in(bytes)), 142, 1);
  DeviceMemory bf16 = memory_31b(KvDtype::kBF16, testing::fp8_dynamic());
  bf16.workspace = 4000000000;
  bf16.chunk_pages = 0;
  EXPECT_EQ(bf16.sequences_in(bytes), 68);
}

TEST(DeviceMemory, WordsForPeople) {
  EXPECT_EQ(gibibytes(int64_t{3} << 29), "1.50 GiB");
  EXPECT_EQ(to_string({.weights = int64_t{1} << 30, .workspace = 0, .sequence = int64_t{1} << 29, .chunk_pages = 0}),
            "weights 1.00 GiB, workspace 0.00 GiB, cache 0.50 GiB a sequence and 0.00 GiB for a chunk");
}

}  // namespace
}  // namespace quaver
