#include "engine/generator.h"

#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "quaver/error.h"
#include "testing/tiny_generator.h"

namespace quaver {
namespace {

using testing::random_tokens;

std::vector<int32_t> all_rows(size_t count) {
  std::vector<int32_t> rows(count);
  for (size_t i = 0; i < count; ++i) rows[i] = static_cast<int32_t>(i);
  return rows;
}

double relative_l2(const std::vector<float>& a, const std::vector<float>& b) {
  double error = 0;
  double square = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    error += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    square += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(error / square);
}

template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

class BothFamilies : public ::testing::TestWithParam<KvDtype> {
 protected:
  static std::vector<nlohmann::json> configs() {
    return {testing::tiny_gemma3_config(), testing::tiny_gemma4_config()};
  }
};

// B17: keys inside the window survive any chunking; prompt 100, window 6.
TEST_P(BothFamilies, ChunkedPrefillEqualsOneShot) {
  const std::vector<int32_t> tokens = random_tokens(100);
  const std::vector<int32_t> rows = all_rows(100);
  for (const nlohmann::json& config : configs()) {
    const std::vector<float> expected =
        testing::tiny_generator(config, {.kv_dtype = GetParam(), .block_size = 16, .prefill_chunk = 100})
            .logits(tokens, rows);
    for (const int64_t chunk : {1, 7, 8, 15, 16, 17, 32, 33}) {
      Generator chunked =
          testing::tiny_generator(config, {.kv_dtype = GetParam(), .block_size = 16, .prefill_chunk = chunk});
      EXPECT_LT(relative_l2(chunked.logits(tokens, rows), expected), 2e-3) << config["model_type"] << " " << chunk;
    }
  }
}

// With fixed summation orders chunking changes nothing at all.
TEST_P(BothFamilies, BatchInvariantChunksAreBitwiseEqual) {
  const std::vector<int32_t> tokens = random_tokens(100);
  const std::vector<int32_t> rows = all_rows(100);
  GeneratorOptions options{.kv_dtype = GetParam(), .block_size = 16, .prefill_chunk = 100};
  options.model.batch_invariant = true;
  for (const nlohmann::json& config : configs()) {
    options.prefill_chunk = 100;
    const std::vector<float> expected = testing::tiny_generator(config, options).logits(tokens, rows);
    for (const int64_t chunk : {1, 17, 33}) {
      options.prefill_chunk = chunk;
      EXPECT_EQ(testing::tiny_generator(config, options).logits(tokens, rows), expected)
          << config["model_type"] << " " << chunk;
    }
  }
}

// 40 decode steps past the window choose the tokens that a fresh prefill of the whole text chooses.
TEST_P(BothFamilies, DecodeContinuesThePrefill) {
  GeneratorOptions options{.kv_dtype = GetParam(), .block_size = 16};
  options.model.batch_invariant = true;
  const std::vector<int32_t> prompt = random_tokens(30);
  for (const nlohmann::json& config : configs()) {
    Generator generator = testing::tiny_generator(config, options);
    const GenerationResult result = generator.generate(prompt, {.max_tokens = 40, .ignore_eos = true});
    ASSERT_EQ(result.tokens.size(), 40U);
    EXPECT_EQ(result.finish_reason, FinishReason::kLength);
    std::vector<int32_t> text = prompt;
    text.insert(text.end(), result.tokens.begin(), result.tokens.end());
    std::vector<int32_t> rows;
    for (int32_t row = 29; row < 69; ++row) rows.push_back(row);
    const std::vector<float> logits = generator.logits(text, rows);
    for (size_t i = 0; i < 40; ++i) {
      const std::span<const float> row(logits.data() + i * 97, 97);
      EXPECT_EQ(argmax(row), result.tokens[i]) << config["model_type"] << " step " << i;
    }
  }
}

TEST_P(BothFamilies, TwoRunsAreBitwiseEqual) {
  const std::vector<int32_t> tokens = random_tokens(50);
  for (const nlohmann::json& config : configs()) {
    Generator generator =
        testing::tiny_generator(config, {.kv_dtype = GetParam(), .block_size = 16, .prefill_chunk = 20});
    const std::vector<float> first = generator.logits(tokens, all_rows(50));
    EXPECT_EQ(generator.logits(tokens, all_rows(50)), first);  // on pages that now hold the first run's bytes
    for (const float logit : first) ASSERT_TRUE(std::isfinite(logit));
  }
}

INSTANTIATE_TEST_SUITE_P(Cache, BothFamilies, ::testing::Values(KvDtype::kE4M3, KvDtype::kBF16),
                         [](const auto& each) { return std::string(kv_dtype_name(each.param)); });

// B30: the full layer decides how long the sequence is: another first token still changes the logits far beyond the
// window, and the window matters.
TEST(Generator, GlobalAndSlidingLayersDiffer) {
  const std::vector<int32_t> tokens = random_tokens(40);
  std::vector<int32_t> other = tokens;
  other[0] = tokens[0] == 50 ? 51 : 50;
  nlohmann::json config = testing::tiny_gemma3_config();
  const std::vector<int32_t> last{39};
  const auto logits = [&](const nlohmann::json& layer_types, const std::vector<int32_t>& text) {
    config["layer_types"] = layer_types;
    return testing::tiny_generator(config, {.kv_dtype = KvDtype::kBF16, .block_size = 16}).logits(text, last);
  };
  const nlohmann::json mixed{"sliding_attention", "full_attention", "sliding_attention"};
  const nlohmann::json sliding{"sliding_attention", "sliding_attention", "sliding_attention"};
  const nlohmann::json full{"full_attention", "full_attention", "full_attention"};
  EXPECT_NE(logits(mixed, tokens), logits(mixed, other));
  EXPECT_EQ(logits(sliding, tokens), logits(sliding, other));  // 3 layers of window 6 reach back 15 tokens
  EXPECT_NE(logits(mixed, tokens), logits(full, tokens));
  EXPECT_NE(logits(mixed, tokens), logits(sliding, tokens));
}

// B31: every id of the list stops, the stop id is not in the text, other ids do not stop.
TEST(Generator, StopIds) {
  nlohmann::json config = testing::tiny_gemma3_config();
  const std::vector<int32_t> prompt = random_tokens(8);
  const std::vector<int32_t> free = testing::tiny_generator(config, {.block_size = 16})
                                        .generate(prompt, {.max_tokens = 12, .ignore_eos = true})
                                        .tokens;
  const int32_t stop = free[3];
  const auto first = static_cast<size_t>(std::find(free.begin(), free.end(), stop) - free.begin());
  const std::vector<int32_t> before(free.begin(), free.begin() + static_cast<int64_t>(first));

  config["eos_token_id"] = {1, stop};
  std::vector<int32_t> streamed;
  const GenerationResult eos =
      testing::tiny_generator(config, {.block_size = 16}).generate(prompt, {.max_tokens = 12}, [&](int32_t token) {
        streamed.push_back(token);
        return true;
      });
  EXPECT_EQ(eos.finish_reason, FinishReason::kStop);
  EXPECT_EQ(eos.tokens, before);
  EXPECT_EQ(streamed, before);

  config["eos_token_id"] = 1;
  Generator generator = testing::tiny_generator(config, {.block_size = 16});
  const GenerationResult custom =
      generator.generate(prompt, {.max_tokens = 12, .ignore_eos = true, .stop_token_ids = {stop}});
  EXPECT_EQ(custom.finish_reason, FinishReason::kStop);
  EXPECT_EQ(custom.tokens, before);
}

TEST(Generator, CallbackAborts) {
  Generator generator = testing::tiny_generator(testing::tiny_gemma3_config(), {.block_size = 16});
  int calls = 0;
  const GenerationResult result = generator.generate(random_tokens(8), {.max_tokens = 12, .ignore_eos = true},
                                                     [&](int32_t /*token*/) { return ++calls < 3; });
  EXPECT_EQ(result.finish_reason, FinishReason::kAbort);
  EXPECT_EQ(result.tokens.size(), 3U);
}

// B37, B39: what cannot run is refused with its numbers; the generator works afterwards.
TEST(Generator, RefusesPromptsThatDoNotFit) {
  Generator generator = testing::tiny_generator(testing::tiny_gemma3_config(), {.block_size = 16, .max_model_len = 64});
  const auto generate = [&](size_t prompt, int64_t max_tokens) {
    return error_of([&] { generator.generate(random_tokens(prompt), {.max_tokens = max_tokens, .ignore_eos = true}); });
  };
  EXPECT_EQ(generate(0, 1), "prompt of 0 tokens: expected at least 1");
  EXPECT_EQ(generate(60, 5), "prompt of 60 tokens + max_tokens 5: expected at most max_model_len 64");
  EXPECT_EQ(generate(65, 0), "prompt of 65 tokens + max_tokens 0: expected at most max_model_len 64");
  EXPECT_NE(generate(10, int64_t{1} << 62).find("max_model_len 64"), std::string::npos);
  EXPECT_EQ(generate(10, -1), "max_tokens -1: expected >= 0");
  EXPECT_EQ(error_of([&] { generator.generate(std::vector<int32_t>{97}, {}); }), "token id 97: expected 0 to 96");
  EXPECT_EQ(error_of([&] { generator.generate(std::vector<int32_t>{3}, {.sampling = {.top_p = 2}}); }),
            "top_p 2: expected in (0, 1]");
  EXPECT_EQ(generate(59, 5), "accepted");
  EXPECT_EQ(generate(64, 0), "accepted");
  EXPECT_NE(error_of([] {
              testing::tiny_generator(testing::tiny_gemma3_config(), {.block_size = 16, .max_model_len = 513});
            }).find("max_position_embeddings 512"),
            std::string::npos);
}

// A cache of a given size refuses what it cannot hold, and takes the largest prompt that it can.
TEST(Generator, CacheBytesBoundThePrompt) {
  const Generator whole = testing::tiny_generator(testing::tiny_gemma3_config(), {.block_size = 16});
  const int64_t block = 16 * whole.kv_bytes_per_token() / 3;  // one layer's page: the plan has one slab
  Generator generator =
      testing::tiny_generator(testing::tiny_gemma3_config(), {.block_size = 16, .kv_cache_bytes = 8 * block});
  EXPECT_NE(error_of([&] { generator.generate(random_tokens(200), {.max_tokens = 1}); }).find("cache blocks"),
            std::string::npos);
  EXPECT_EQ(generator.generate(random_tokens(16), {.max_tokens = 1, .ignore_eos = true}).tokens.size(), 1U);
}

TEST(Generator, TokenLogprobsAreThoseOfTheLogits) {
  const std::vector<int32_t> tokens = random_tokens(75);
  Generator generator = testing::tiny_generator(testing::tiny_gemma4_config(), {.block_size = 16, .prefill_chunk = 40});
  const std::vector<double> logprobs = generator.token_logprobs(tokens);
  ASSERT_EQ(logprobs.size(), 74U);
  const std::vector<float> logits = generator.logits(tokens, all_rows(75));
  for (size_t i = 0; i < 74; ++i) {
    EXPECT_NEAR(logprobs[i], log_probability({logits.data() + i * 97, 97}, tokens[i + 1]), 1e-5) << i;
  }
  EXPECT_TRUE(generator.token_logprobs(std::vector<int32_t>{3}).empty());
}

// A seed gives the same text whatever ran before; other seeds give others.
TEST(Generator, SeedsDecideTheText) {
  Generator generator = testing::tiny_generator(testing::tiny_gemma3_config(), {.block_size = 16});
  const std::vector<int32_t> prompt = random_tokens(5);
  const auto text = [&](uint64_t seed) {
    return generator
        .generate(prompt, {.sampling = {.temperature = 1.0, .seed = seed}, .max_tokens = 20, .ignore_eos = true})
        .tokens;
  };
  const std::vector<int32_t> first = text(42);
  EXPECT_NE(text(43), first);
  EXPECT_EQ(text(42), first);
}

TEST(Generator, ObserverSeesEveryLayer) {
  Generator generator = testing::tiny_generator(testing::tiny_gemma4_config(), {.block_size = 16});
  std::vector<int> layers;
  generator.set_observer([&](const LayerObservation& seen) {
    layers.push_back(seen.layer);
    EXPECT_EQ(seen.q.size(), size_t{9} * 4 * (seen.layer == 2 ? 64 : 32));
    EXPECT_EQ(seen.k.size(), size_t{9} * (seen.layer == 2 ? 64 : 64));
    EXPECT_EQ(seen.attention.size(), seen.q.size());
  });
  (void)generator.logits(random_tokens(9), std::vector<int32_t>{8});
  EXPECT_EQ(layers, (std::vector<int>{0, 1, 2}));
}

// Dummy weights need no weight file, and a seed decides them.
TEST(Generator, DummyWeightsGenerate) {
  const testing::TempDir folder;
  folder.write("config.json", testing::tiny_gemma4_config().dump());
  const auto text = [&](uint64_t seed) {
    return Generator::load_dummy(folder.path(), {.block_size = 16}, seed)
        .generate(random_tokens(9), {.max_tokens = 8, .ignore_eos = true})
        .tokens;
  };
  const std::vector<int32_t> first = text(1);
  EXPECT_EQ(first.size(), 8U);
  EXPECT_EQ(text(1), first);
}

TEST(Generator, BytesPerToken) {
  // Gemma 3: 3 layers x 1 head x 32 x (K + V).
  EXPECT_EQ(testing::tiny_generator(testing::tiny_gemma3_config(), {.block_size = 16}).kv_bytes_per_token(), 3 * 64);
  EXPECT_EQ(testing::tiny_generator(testing::tiny_gemma3_config(), {.kv_dtype = KvDtype::kBF16, .block_size = 16})
                .kv_bytes_per_token(),
            3 * 128);
}

}  // namespace
}  // namespace quaver
