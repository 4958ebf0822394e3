#include "engine/runner_options.h"

#include <algorithm>

#include "core/check.h"
#include "engine/scheduler.h"
#include "model/cpu_model.h"

namespace quaver {
namespace {

constexpr int64_t kMostSequences = 65536;  // what slots take is allocated at once

}  // namespace

ServingPlan plan_serving(const std::filesystem::path& directory, const RunnerOptions& options,
                         const EngineOptions& engine) {
  ServingPlan plan{.config = load_model_config(directory, options.hf_overrides)};
  const int64_t limit = plan.config.max_positions;
  check(engine.max_model_len >= 0 && engine.max_model_len <= limit, "max_model_len ", engine.max_model_len,
        ": expected at most the model's max_position_embeddings ", limit);
  check(engine.max_num_seqs > 0 && engine.max_num_seqs <= kMostSequences, "max_num_seqs ", engine.max_num_seqs,
        ": expected 1 to ", kMostSequences);
  plan.cache = plan_cache(cache_specs(plan.config, options.kv_dtype, options.kv_dtype_skip_layers), options.block_size);
  plan.max_model_len = engine.max_model_len > 0 ? engine.max_model_len : limit;
  plan.max_query_len = std::clamp<int64_t>(max_chunk(engine), 1, plan.max_model_len);
  plan.pool = {.cache_bytes = options.kv_cache_bytes,
               .memory_utilization = options.memory_utilization,
               .max_num_seqs = engine.max_num_seqs,
               .max_model_len = plan.max_model_len,
               .step_tokens = plan.max_query_len};
  return plan;
}

}  // namespace quaver
