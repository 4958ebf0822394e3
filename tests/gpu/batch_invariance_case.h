// Batch-invariant mode on the GPU: what a request gets depends on the request alone, bit for bit.
#pragma once

#include <string>

#include "device_runner_case.h"
#include "testing/completions.h"
#include "testing/quant_recipes.h"
#include "testing/tiny_gemma.h"

namespace quaver::testing {

struct InvarianceCase {
  std::string name;
  nlohmann::json config;
  KvDtype dtype = KvDtype::kE4M3;
  int num_requests = 33;
  int64_t num_pages = 28;  ///< of the pool of those that run together
  int max_tokens = 24;
  int repeat_prompt = 1;  ///< prompts are so many times as long
  bool graphs = true;
};

/// A tiny model with head dims that the FP8 kernels take, and rows longer than two chains of products between
/// promotions.
inline nlohmann::json with_fp8_kernels(nlohmann::json config, int global_head_dim,
                                       const nlohmann::json& quantization = {}) {
  config["head_dim"] = 64;
  if (config.contains("global_head_dim")) config["global_head_dim"] = global_head_dim;
  config["hidden_size"] = 64;
  config["intermediate_size"] = 1280;
  config["max_position_embeddings"] = 16384;
  if (!quantization.is_null()) config["quantization_config"] = quantization;
  return config;
}

class DeviceBatchInvariance : public ::testing::TestWithParam<InvarianceCase> {
 protected:
  [[nodiscard]] static std::vector<Request> requests() {
    std::vector<Request> all = requests_of_all_kinds(GetParam().num_requests, GetParam().max_tokens);
    for (Request& request : all) {
      const std::vector<int32_t> once = request.prompt;
      for (int i = 1; i < GetParam().repeat_prompt; ++i) {
        request.prompt.insert(request.prompt.end(), once.begin(), once.end());
      }
    }
    return all;
  }

  [[nodiscard]] static EngineOptions invariant(EngineOptions options) {
    options.max_model_len = int64_t{128} * GetParam().repeat_prompt;
    options.batch_invariant = true;
    return options;
  }
  [[nodiscard]] static std::unique_ptr<Runner> runner_of(const EngineOptions& options, int64_t num_pages) {
    const TempDir folder;
    folder.write("config.json", GetParam().config.dump());
    RunnerOptions runner = runner_options(GetParam().dtype, GetParam().graphs);
    runner.dummy_seed = 3;
    runner.kv_cache_bytes = num_pages * on_gpu(folder.path(), runner, options)->cache_plan().block_bytes();
    return on_gpu(folder.path(), runner, options);
  }

  /// Alone in a roomy pool against all together under each of `options`: other batch sizes and chunks, prefix hits and,
  /// `preempted`, a pool so small that requests are.
  static void expect_answers_of_the_request_alone(const std::vector<EngineOptions>& options, bool preempted) {
    const std::vector<Request> all = requests();
    std::map<uint64_t, Completion> expected;
    {
      const EngineOptions roomy =
          invariant({.max_num_seqs = 1, .max_num_batched_tokens = 8192, .prefix_caching = false});
      Engine alone(runner_of(roomy, 200 * GetParam().repeat_prompt), roomy, {1, 5});
      for (const Request& request : all) expected.merge(complete(alone, {request}));
    }
    int64_t preemptions = 0;
    int64_t cached_tokens = 0;
    for (const EngineOptions& each : options) {
      const EngineOptions many = invariant(each);
      const auto [got, stats] = complete_at_once(runner_of(many, GetParam().num_pages), many, {1, 5}, all);
      for (const Request& request : all) expect_equal(got.at(request.id), expected.at(request.id), request.id);
      preemptions += stats.preemptions_total;
      cached_tokens += stats.cached_tokens_total;
      EXPECT_EQ(stats.num_free_pages, stats.num_pages);
    }
    EXPECT_EQ(preemptions > 0, preempted);
    EXPECT_GT(cached_tokens, 0);
  }
};

}  // namespace quaver::testing
