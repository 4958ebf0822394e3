#include "engine/attention_probe.h"

#include <gtest/gtest.h>

#include "quaver/error.h"
#include "testing/tiny_generator.h"

namespace quaver {
namespace {

AttentionErrors measure(const nlohmann::json& config, GeneratorOptions options, int64_t interval = 1) {
  options.block_size = 16;
  options.prefill_chunk = 7;
  Generator generator = testing::tiny_generator(config, options);
  AttentionProbe probe(generator.model(), interval);
  generator.set_observer([&](const LayerObservation& seen) { probe.observe(seen); });
  (void)generator.generate(testing::random_tokens(30), {.max_tokens = 11, .ignore_eos = true});
  return probe.errors();
}

// FP32 arithmetic on the cache is exact to rounding; what is left is the storage: 3 mantissa bits against 7.
TEST(AttentionProbe, SeparatesArithmeticFromStorage) {
  for (const nlohmann::json& config : {testing::tiny_gemma3_config(), testing::tiny_gemma4_config()}) {
    const AttentionErrors fp8 = measure(config, {.kv_dtype = KvDtype::kE4M3});
    EXPECT_EQ(fp8.rows, 3 * (5 + 10));  // 5 chunks and 10 decode steps in 3 layers
    EXPECT_LT(fp8.same_cache, 2e-6);
    EXPECT_GT(fp8.same_cache, 0.0);
    EXPECT_GT(fp8.exact_cache, 5e-3);
    EXPECT_LT(fp8.exact_cache, 6e-2);
    const AttentionErrors bf16 = measure(config, {.kv_dtype = KvDtype::kBF16});
    EXPECT_LT(bf16.same_cache, 2e-6);
    EXPECT_GT(bf16.exact_cache, 5e-4);
    EXPECT_LT(bf16.exact_cache, 5e-3);
  }
}

// The probe sees the numerics that ran: E4M3 Q and P cost percents, hi + lo almost nothing (docs/numerics.md).
TEST(AttentionProbe, SeesTheEmulatedKernels) {
  nlohmann::json config = testing::tiny_gemma4_config();
  config["head_dim"] = 64;
  config["global_head_dim"] = 128;
  GeneratorOptions options{.kv_dtype = KvDtype::kE4M3};
  options.model.attention_kernel = AttentionKernel::kCpuEmulated;
  options.model.attention_precision = Precision::kSingle;
  const AttentionErrors single = measure(config, options);
  options.model.attention_precision = Precision::kSplit;
  const AttentionErrors split = measure(config, options);
  EXPECT_GT(single.same_cache, 5e-3);
  EXPECT_LT(single.same_cache, 8e-2);
  EXPECT_LT(split.same_cache, 4e-3);
}

TEST(AttentionProbe, MeasuresEveryNthStep) {
  EXPECT_EQ(measure(testing::tiny_gemma3_config(), {}, 4).rows, 3 * 4);
  Generator generator = testing::tiny_generator(testing::tiny_gemma3_config(), {.block_size = 16});
  EXPECT_THROW(AttentionProbe(generator.model(), 0), Error);
}

}  // namespace
}  // namespace quaver
