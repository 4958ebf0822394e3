// The whole engine over real models (tiny, random): in batch-invariant mode what a request gets depends on the request
// alone, bit for bit.
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "quaver/engine.h"
#include "testing/completions.h"
#include "testing/tiny_generator.h"
#include "testing/tiny_runner.h"

namespace quaver {
namespace {

using testing::complete;
using testing::Completion;
using testing::random_tokens;

struct Case {
  std::string name;
  nlohmann::json config;
  RunnerOptions runner{};
  int num_pages = 40;
  int num_requests = 33;
  bool images = false;  ///< in some of the prompts
};

nlohmann::json with(nlohmann::json config, const char* field, int value) {
  config[field] = value;
  return config;
}

std::vector<Case> cases() {
  const nlohmann::json gemma3 = testing::tiny_gemma3_config();
  const nlohmann::json gemma4 = testing::tiny_gemma4_config();
  return {{.name = "Gemma3Fp8", .config = gemma3},
          // Matrices large enough for BLAS, whose sums depend on the number of rows.
          {.name = "Gemma4Fp8", .config = with(gemma4, "intermediate_size", 512)},
          {.name = "Gemma4Bf16", .config = gemma4, .runner = {.kv_dtype = KvDtype::kBF16}},
          {.name = "Gemma3SkipsALayer", .config = gemma3, .runner = {.kv_dtype_skip_layers = {1}}, .num_pages = 28},
          // The GPU kernels' arithmetic; their smallest head dim is 64.
          {.name = "Gemma3Emulated",
           .config = with(gemma3, "head_dim", 64),
           .runner = {.attention_kernel = AttentionKernel::kCpuEmulated},
           .num_pages = 20,
           .num_requests = 9},
          {.name = "Gemma3Images", .config = gemma3, .num_pages = 26, .images = true},
          {.name = "Gemma4Images", .config = gemma4, .num_pages = 34, .images = true}};
}

class BatchInvariance : public ::testing::TestWithParam<Case> {
 protected:
  [[nodiscard]] static std::unique_ptr<Runner> runner_of(const EngineOptions& options, int64_t num_pages) {
    RunnerOptions runner = GetParam().runner;
    runner.kv_cache_bytes = int64_t{1} << 20;
    const int64_t block_bytes = testing::tiny_runner(GetParam().config, runner, options)->cache_plan().block_bytes();
    runner.kv_cache_bytes = num_pages * block_bytes;
    return testing::tiny_runner(GetParam().config, runner, options);
  }
};

// B25, B40, B41, B42, B43: alone in a roomy pool against all together, with chunks of other sizes, prefix hits and a
// pool so small that requests are preempted.
TEST_P(BatchInvariance, AnswersAreThoseOfTheRequestAlone) {
  const std::vector<Request> all = testing::requests_of_all_kinds(GetParam().num_requests, 24, GetParam().images);
  std::map<uint64_t, Completion> expected;
  {
    const EngineOptions options{.prefix_caching = false, .batch_invariant = true};
    Engine alone(runner_of(options, 200), options, {1, 5});
    for (const Request& request : all) expected.merge(complete(alone, {request}));
  }
  for (const EngineOptions& options :
       {EngineOptions{.max_num_batched_tokens = 48, .batch_invariant = true},
        EngineOptions{.max_num_seqs = 7, .prefill_chunk_tokens = 5, .batch_invariant = true}}) {
    const auto [answers, stats] =
        testing::complete_at_once(runner_of(options, GetParam().num_pages), options, {1, 5}, all);
    for (const Request& request : all) expect_equal(answers.at(request.id), expected.at(request.id), request.id);
    EXPECT_GT(stats.preemptions_total, 0);
    EXPECT_GT(stats.cached_tokens_total, 0);
    EXPECT_EQ(stats.num_free_pages, GetParam().num_pages);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, BatchInvariance, ::testing::ValuesIn(cases()),
                         [](const auto& each) { return each.param.name; });

// B41: around page boundaries a prompt sent again finds its whole pages, but for one token that is left to compute, and
// gets the same bits; another salt finds nothing; prompt log-probabilities are complete on a hit.
TEST(ServingModel, PrefixHitsChangeNothing) {
  const EngineOptions options{.batch_invariant = true};
  Engine engine(testing::tiny_runner(testing::tiny_gemma3_config(), {}, options), options, {1, 5});
  for (const size_t length : {15U, 16U, 17U, 32U, 33U}) {
    Request request{.id = 1, .prompt = random_tokens(length, 50 + static_cast<unsigned>(length)), .cache_salt = "A"};
    request.params.max_tokens = 4;
    request.params.ignore_eos = true;
    request.params.logprobs = 3;
    const Completion cold = complete(engine, {request})[1];
    EXPECT_EQ(cold.cached_tokens, 0);
    const Completion hit = complete(engine, {request})[1];
    EXPECT_EQ(hit.cached_tokens, static_cast<int64_t>((length - 1) / 16 * 16)) << length;
    EXPECT_EQ(hit.tokens, cold.tokens) << length;
    EXPECT_EQ(hit.logprobs, cold.logprobs) << length;
    request.cache_salt = "B";
    request.params.prompt_logprobs = 0;
    EXPECT_EQ(complete(engine, {request})[1].cached_tokens, 0) << length;
    EXPECT_EQ(complete(engine, {request})[1].prompt_logprobs.size(), length - 1);
  }
}

// B40's own numbers: 40 pages of 16, eight greedy requests of 64 + 128 tokens.
TEST(ServingModel, PreemptedTextsAreWhole) {
  const nlohmann::json config = testing::tiny_gemma3_config();
  GeneratorOptions solo{.block_size = 16};
  solo.model.batch_invariant = true;
  Generator generator = testing::tiny_generator(config, solo);
  const EngineOptions options{.batch_invariant = true};
  RunnerOptions runner{.kv_cache_bytes = 40 * testing::tiny_runner(config, {}, options)->cache_plan().block_bytes()};
  Engine engine(testing::tiny_runner(config, runner, options), options, {1, 5});
  std::vector<Request> requests;
  for (uint64_t id = 0; id < 8; ++id) {
    Request request{.id = id, .prompt = random_tokens(64, static_cast<unsigned>(id))};
    request.params.max_tokens = 128;
    request.params.ignore_eos = true;
    requests.push_back(std::move(request));
  }
  const std::map<uint64_t, Completion> answers = complete(engine, requests);
  for (const Request& request : requests) {
    EXPECT_EQ(answers.at(request.id).tokens,
              generator.generate(request.prompt, {.max_tokens = 128, .ignore_eos = true}).tokens);
  }
  EXPECT_GT(engine.stats().preemptions_total, 0);
  EXPECT_EQ(engine.stats().prompt_tokens_total, 8 * 64);
  EXPECT_EQ(engine.stats().generated_tokens_total, 8 * 128);
}

}  // namespace
}  // namespace quaver
