// The whole engine over real models (tiny, random): in batch-invariant mode what a request gets depends on the request
// alone, bit for bit.
#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "quaver/engine.h"
#include "testing/tiny_generator.h"
#include "testing/tiny_runner.h"

namespace quaver {
namespace {

using testing::random_tokens;

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;         // of the tokens and the best three of each step
  std::vector<float> prompt_logprobs;  // likewise
  std::optional<FinishReason> finish_reason;
  int64_t cached_tokens = 0;
};

void take_logprobs(const TokenLogprobs& from, std::vector<float>& to) {
  to.push_back(from.logprob);
  for (const auto& [id, logprob] : from.top) to.push_back(logprob);
}

// Answers by id, of requests that run at the same time.
std::map<uint64_t, Answer> serve(Engine& engine, const std::vector<Request>& requests) {
  std::map<uint64_t, Answer> answers;
  for (const Request& request : requests) {
    answers[request.id] = {};
    engine.add(request);
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  size_t num_ended = 0;
  while (num_ended < requests.size() && std::chrono::steady_clock::now() < deadline) {
    for (const Output& output : engine.wait(0.1)) {
      Answer& answer = answers[output.request_id];
      EXPECT_FALSE(answer.finish_reason) << "output after the last one of request " << output.request_id;
      if (output.token) answer.tokens.push_back(*output.token);
      answer.finish_reason = output.finish_reason;
      answer.cached_tokens = std::max(answer.cached_tokens, output.cached_tokens);
      if (output.details) {
        if (output.details->logprobs) take_logprobs(*output.details->logprobs, answer.logprobs);
        for (const TokenLogprobs& each : output.details->prompt_logprobs) take_logprobs(each, answer.prompt_logprobs);
        EXPECT_EQ(output.details->error, "");
      }
      if (output.finish_reason) ++num_ended;
    }
  }
  EXPECT_EQ(num_ended, requests.size());
  return answers;
}

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
  [[nodiscard]] static std::unique_ptr<Engine> engine(const EngineOptions& options, int64_t num_pages) {
    RunnerOptions runner = GetParam().runner;
    runner.kv_cache_bytes = int64_t{1} << 20;
    const int64_t block_bytes = testing::tiny_runner(GetParam().config, runner, options)->cache_plan().block_bytes();
    runner.kv_cache_bytes = num_pages * block_bytes;
    return std::make_unique<Engine>(testing::tiny_runner(GetParam().config, runner, options), options,
                                    std::vector<int32_t>{1, 5});
  }

  // Prompts of 1 to 60 tokens, many with the same beginning; greedy, sampled and penalised.
  [[nodiscard]] static std::vector<Request> requests() {
    const std::vector<int32_t> shared = random_tokens(40, 99);
    std::vector<Request> requests;
    for (int i = 0; i < GetParam().num_requests; ++i) {
      Request request{.id = static_cast<uint64_t>(i), .prompt = random_tokens(static_cast<size_t>(1 + i * 17 % 60), 7)};
      if (i % 3 == 0) request.prompt.insert(request.prompt.begin(), shared.begin(), shared.end());
      request.params.sampling.seed = static_cast<uint64_t>(i);
      if (i % 2 == 1) request.params.sampling.temperature = 1.0;
      if (i % 4 == 1) request.params.sampling.top_p = 0.9;
      if (i % 5 == 1) request.params.sampling.repetition_penalty = 1.3;
      if (i % 5 == 2) request.params.sampling.frequency_penalty = 0.5;
      request.params.max_tokens = 24;
      request.params.ignore_eos = i % 7 != 0;
      request.params.logprobs = 3;
      if (i % 8 == 0) request.params.prompt_logprobs = 3;
      // Images of up to 5 tokens; of the shared beginning some have the same ones, others are text.
      const bool images = GetParam().images && i % 4 >= 2;
      for (int64_t first = 2; images && first + 5 <= std::ssize(request.prompt); first += 6 + i % 3) {
        request.spans.push_back({.first = first, .last = first + 2 + first % 4});
      }
      requests.push_back(std::move(request));
    }
    return requests;
  }
};

// B25, B40, B41, B42, B43: alone in a roomy pool against all together, with chunks of other sizes, prefix hits and a
// pool so small that requests are preempted.
TEST_P(BatchInvariance, AnswersAreThoseOfTheRequestAlone) {
  const std::vector<Request> all = requests();
  std::map<uint64_t, Answer> expected;
  {
    const auto alone = engine({.prefix_caching = false, .batch_invariant = true}, 200);
    for (const Request& request : all) expected.merge(serve(*alone, {request}));
  }
  for (const EngineOptions& options :
       {EngineOptions{.max_num_batched_tokens = 48, .batch_invariant = true},
        EngineOptions{.max_num_seqs = 7, .prefill_chunk_tokens = 5, .batch_invariant = true}}) {
    const auto together = engine(options, GetParam().num_pages);
    const std::map<uint64_t, Answer> answers = serve(*together, all);
    for (const Request& request : all) {
      const Answer& got = answers.at(request.id);
      const Answer& want = expected.at(request.id);
      EXPECT_EQ(got.tokens, want.tokens) << "request " << request.id;
      EXPECT_EQ(got.logprobs, want.logprobs) << "request " << request.id;
      EXPECT_EQ(got.prompt_logprobs, want.prompt_logprobs) << "request " << request.id;
      EXPECT_EQ(got.finish_reason, want.finish_reason) << "request " << request.id;
    }
    const EngineStats stats = together->stats();
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
    const Answer cold = serve(engine, {request})[1];
    EXPECT_EQ(cold.cached_tokens, 0);
    const Answer hit = serve(engine, {request})[1];
    EXPECT_EQ(hit.cached_tokens, static_cast<int64_t>((length - 1) / 16 * 16)) << length;
    EXPECT_EQ(hit.tokens, cold.tokens) << length;
    EXPECT_EQ(hit.logprobs, cold.logprobs) << length;
    request.cache_salt = "B";
    request.params.prompt_logprobs = 0;
    EXPECT_EQ(serve(engine, {request})[1].cached_tokens, 0) << length;
    EXPECT_EQ(serve(engine, {request})[1].prompt_logprobs.size(), length - 1);
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
  const std::map<uint64_t, Answer> answers = serve(engine, requests);
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
