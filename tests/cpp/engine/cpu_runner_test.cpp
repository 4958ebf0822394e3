#include "engine/cpu_runner.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "quaver/error.h"
#include "testing/expect_error.h"
#include "testing/step_driver.h"
#include "testing/tiny_generator.h"
#include "testing/tiny_runner.h"

namespace quaver {
namespace {

using testing::random_tokens;

using Driver = testing::StepDriver;

std::vector<int32_t> solo_text(const nlohmann::json& config, const std::vector<int32_t>& prompt, int64_t count,
                               const SamplingParams& sampling = {}) {
  GeneratorOptions options{.block_size = 16};
  options.model.batch_invariant = true;
  return testing::tiny_generator(config, options)
      .generate(prompt, {.sampling = sampling, .max_tokens = count, .ignore_eos = true})
      .tokens;
}

// Two requests, one prefilled in two chunks while the other decodes; every decode step is launched before the one
// before it has been waited for, so its tokens come by feedback.
TEST(CpuRunner, FeedsTokensBackWithTwoStepsInFlight) {
  const std::vector<int32_t> a = random_tokens(9, 1);
  const std::vector<int32_t> b = random_tokens(30, 2);
  const SamplingParams sampling{.temperature = 0.8, .top_p = 0.95, .repetition_penalty = 1.1, .seed = 42};
  for (const nlohmann::json& config : {testing::tiny_gemma3_config(), testing::tiny_gemma4_config()}) {
    Driver driver(testing::tiny_runner(config, {}, {.batch_invariant = true}));
    Driver::Sequence first{.slot = 2, .pages = {}};
    Driver::Sequence second{.slot = 0, .pages = {}};
    std::vector<int32_t> text_a;
    std::vector<int32_t> text_b;
    std::vector<Step> steps(14);
    for (size_t i = 0; i < steps.size(); ++i) {
      Step& step = steps[i];
      if (i == 0) {
        Driver::start(step, first, {.sampling = sampling}, a);
        driver.add(step, first, a);
      } else {
        if (i == 1) Driver::start(step, second, {}, b);
        if (i == 1) driver.add(step, second, {b.begin(), b.begin() + 17}, false);
        if (i == 2) driver.add(step, second, {b.begin() + 17, b.end()});
        if (i > 2) driver.add(step, second, {-1});
        driver.add(step, first, {-1});
      }
      driver.finish(step);
      driver.runner().launch(step);
      if (i == 0) continue;
      const StepResult result = driver.runner().wait();
      text_a.push_back(result.tokens.back());
      if (i > 2) text_b.push_back(result.tokens.front());
      EXPECT_TRUE(result.failures.empty());
      EXPECT_FALSE(result.logprobs.front().has_value());
    }
    const StepResult result = driver.runner().wait();
    text_a.push_back(result.tokens.back());
    text_b.push_back(result.tokens.front());
    EXPECT_EQ(text_a, solo_text(config, a, 14, sampling)) << config["model_type"];
    EXPECT_EQ(text_b, solo_text(config, b, 12)) << config["model_type"];
  }
}

// B43: prompt log-probabilities do not depend on the chunks and are those of the generator, bit for bit.
TEST(CpuRunner, PromptLogprobsOfAnyChunking) {
  const std::vector<int32_t> prompt = random_tokens(75, 3);
  const nlohmann::json config = testing::tiny_gemma4_config();
  GeneratorOptions options{.block_size = 16};
  options.model.batch_invariant = true;
  const std::vector<double> expected = testing::tiny_generator(config, options).token_logprobs(prompt);
  for (const size_t chunk : {1U, 3U, 7U, 1000U}) {
    Driver driver(testing::tiny_runner(config, {}, {.batch_invariant = true}));
    Driver::Sequence sequence;
    const std::vector<TokenLogprobs> seen = driver.prompt_logprobs(sequence, prompt, chunk, 2);
    ASSERT_EQ(seen.size(), expected.size()) << chunk;
    for (size_t i = 0; i < seen.size(); ++i) {
      EXPECT_EQ(seen[i].token, prompt[i + 1]);
      EXPECT_EQ(seen[i].logprob, static_cast<float>(expected[i])) << chunk << " " << i;
      EXPECT_EQ(seen[i].top.size(), 2U);
    }
  }
}

// Pages shared by a fork are copied before either owner writes.
TEST(CpuRunner, CopiesSharedPagesFirst) {
  const std::vector<int32_t> prompt = random_tokens(20, 4);
  const nlohmann::json config = testing::tiny_gemma3_config();
  const auto next = [&](const std::vector<int32_t>& tokens) { return solo_text(config, tokens, 1).front(); };
  Driver driver(testing::tiny_runner(config, {}, {.batch_invariant = true}));
  Driver::Sequence first;
  Step prefill;
  Driver::start(prefill, first, {}, prompt);
  driver.add(prefill, first, prompt);
  (void)driver.run(prefill);
  Driver::Sequence second{.slot = 1, .pages = driver.manager().fork(first.pages)};
  Step both;
  Driver::start(both, second, {}, prompt);
  driver.add(both, first, {7});
  driver.add(both, second, {8});
  EXPECT_FALSE(both.page_copies.empty());
  const StepResult result = driver.run(both);
  std::vector<int32_t> with_7 = prompt;
  with_7.push_back(7);
  std::vector<int32_t> with_8 = prompt;
  with_8.push_back(8);
  EXPECT_EQ(result.tokens, (std::vector<int32_t>{next(with_7), next(with_8)}));
}

// A step that fails says so in its own wait(); the step behind it and later ones run.
TEST(CpuRunner, CarriesErrorsToTheirStep) {
  Driver driver(testing::tiny_runner(testing::tiny_gemma3_config(), {}));
  Driver::Sequence sequence;
  Driver::Sequence bad{.slot = 1, .pages = {}};
  Step broken;
  Driver::start(broken, bad, {}, {5});
  driver.add(broken, bad, {97});
  driver.finish(broken);
  Step good;
  Driver::start(good, sequence, {}, {5, 6});
  driver.add(good, sequence, {5, 6});
  driver.finish(good);
  driver.runner().launch(broken);
  driver.runner().launch(good);
  testing::expect_error([&] { driver.runner().launch(good); }, ErrorKind::kInternal, {"steps in flight 3"});
  testing::expect_error([&] { (void)driver.runner().wait(); }, ErrorKind::kInvalidArgument, {"token id 97"});
  EXPECT_EQ(driver.runner().wait().tokens, solo_text(testing::tiny_gemma3_config(), {5, 6}, 1));
  testing::expect_error([&] { (void)driver.runner().wait(); }, ErrorKind::kInternal, {"steps in flight 0"});

  Step wrong_rows;
  driver.add(wrong_rows, sequence, {7});
  driver.finish(wrong_rows);
  wrong_rows.samples.push_back({.logit_row = 1, .slot = 0});
  driver.runner().launch(wrong_rows);
  testing::expect_error([&] { (void)driver.runner().wait(); }, ErrorKind::kInvalidArgument, {"logit row 1"});
  wrong_rows.samples.back().logit_row = 0;
  driver.runner().launch(wrong_rows);
  testing::expect_error([&] { (void)driver.runner().wait(); }, ErrorKind::kInvalidArgument, {"logit row 0", "one"});
  wrong_rows.feedback = {{.row = 1, .slot = 0}};
  driver.runner().launch(wrong_rows);
  testing::expect_error([&] { (void)driver.runner().wait(); }, ErrorKind::kInvalidArgument, {"feedback row 1"});
}

// One request with NaN logits fails; the one beside it in the batch gets its token.
TEST(CpuRunner, NamesTheRequestWhoseLogitsAreNotNumbers) {
  const testing::TempDir folder;
  const ModelConfig config = parse_model_config(testing::tiny_gemma3_config().dump());
  folder.write("config.json", testing::tiny_gemma3_config().dump());
  testing::random_checkpoint(config, 11).write(folder.path() / "model.safetensors");
  ModelWeights weights = load_weights(folder.path(), config);
  // A huge embedding overflows in the first norm: inf / inf.
  std::vector<float> embedding(97 * 32);
  const auto* const stored = static_cast<const float*>(weights.embedding.data);
  std::copy_n(stored, embedding.size(), embedding.begin());
  std::fill_n(embedding.begin() + 50 * 32, 32, std::numeric_limits<float>::infinity());
  weights.embedding.data = embedding.data();
  const CachePlan plan = plan_cache(cache_specs(config, KvDtype::kE4M3), 16);
  Driver driver(std::make_unique<CpuRunner>(CpuModel(config, std::move(weights)), plan, 64));
  Driver::Sequence sick{.slot = 4, .pages = {}};
  Driver::Sequence healthy{.slot = 1, .pages = {}};
  Step step;
  Driver::start(step, sick, {}, {9, 50});
  Driver::start(step, healthy, {}, {9, 51});
  driver.add(step, sick, {9, 50});
  driver.add(step, healthy, {9, 51});
  const StepResult result = driver.run(step);
  ASSERT_EQ(result.failures.size(), 1U);
  EXPECT_EQ(result.failures[0].slot, 4);
  EXPECT_NE(result.failures[0].reason.find("NaN"), std::string::npos) << result.failures[0].reason;
  EXPECT_EQ(result.tokens[1], solo_text(testing::tiny_gemma3_config(), {9, 51}, 1).front());
}

// --kv-cache-dtype-skip-layers: the named layers keep BF16, and the text stays near the BF16 cache's.
TEST(CpuRunner, SkippedLayersKeepABf16Cache) {
  const nlohmann::json config = testing::tiny_gemma4_config();
  const auto runner = testing::tiny_runner(config, {.kv_dtype_skip_layers = {2}});
  int bf16_layers = 0;
  for (const CacheGroup& group : runner->cache_plan().groups) {
    if (group.layout.dtype == KvDtype::kBF16) bf16_layers += static_cast<int>(group.layers.size());
  }
  EXPECT_EQ(bf16_layers, 1);
  EXPECT_EQ(runner->cache_plan().groups[static_cast<size_t>(runner->cache_plan().places[2].group)].layout.dtype,
            KvDtype::kBF16);
  EXPECT_EQ(runner->cache_plan().token_bytes(), 2 * 2 * 64 + 2 * 128);

  const auto logprob_of = [&](RunnerOptions options) {
    Driver driver(testing::tiny_runner(config, std::move(options)));
    Driver::Sequence sequence;
    Step step;
    Driver::start(step, sequence, {.logprobs = 0}, {});
    driver.add(step, sequence, random_tokens(60, 8));
    return driver.run(step).logprobs.front()->logprob;
  };
  const float exact = logprob_of({.kv_dtype = KvDtype::kBF16});
  EXPECT_EQ(logprob_of({.kv_dtype_skip_layers = {0, 1, 2}}), exact);
  EXPECT_NEAR(logprob_of({.kv_dtype_skip_layers = {2}}), exact, 0.2);
  testing::expect_error([&] { (void)testing::tiny_runner(config, {.kv_dtype_skip_layers = {3}}); },
                        ErrorKind::kInvalidArgument, {"kv_cache_dtype_skip_layers 3: expected 0 to 2"});
}

TEST(CpuRunner, RefusesOptionsThatCannotBe) {
  const auto refused = [](const RunnerOptions& options, const EngineOptions& engine, std::string_view message) {
    testing::expect_error([&] { (void)testing::tiny_runner(testing::tiny_gemma3_config(), options, engine); },
                          ErrorKind::kInvalidArgument, {message});
  };
  refused({}, {.max_model_len = 513}, "max_model_len 513: expected at most the model's max_position_embeddings 512");
  refused({}, {.max_num_seqs = 0}, "max_num_seqs 0");
  refused({.kv_cache_bytes = 100}, {}, "kv_cache_memory_bytes 100: expected at least");
  refused({}, {.max_num_seqs = int64_t{1} << 40}, "max_num_seqs 1099511627776: expected 1 to 65536");
  testing::expect_error(
      [] { (void)testing::tiny_runner(testing::tiny_gemma3_config(), {.attention_precision = Precision::kSplit}); },
      ErrorKind::kUnsupported, {"no kernel takes this problem", "head dim 32"});
  refused({.num_threads = -1}, {}, "num_threads -1");
  refused({.num_threads = 1000000}, {}, "num_threads 1000000: expected 1 to");
}

}  // namespace
}  // namespace quaver
