// How to load a model for serving, and what follows from it before any memory is taken: the same on every device.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/pool_size.h"
#include "model/weights.h"
#include "quaver/attention.h"
#include "quaver/engine.h"
#include "quaver/kv_cache.h"
#include "quaver/model.h"

namespace quaver {

struct RunnerOptions {
  KvDtype kv_dtype = KvDtype::kE4M3;
  std::vector<int> kv_dtype_skip_layers{};  ///< layers that keep a BF16 cache
  int block_size = 64;                      ///< page size in tokens of the layer kind with the most bytes a token
  int64_t kv_cache_bytes = 0;               ///< 0: memory_utilization of what is available besides the weights
  double memory_utilization = 0.9;
  KvScalePolicy kv_scales = KvScalePolicy::kAuto;
  Precision attention_precision = Precision::kAuto;
  std::optional<AttentionKernel> attention_kernel{};
  int num_threads = 0;                   ///< CPU: of this runner; 0: all
  bool cuda_graphs = true;               ///< GPU: decode steps as graphs
  std::optional<uint64_t> dummy_seed{};  ///< random weights of the shapes in DIR/config.json
  std::string hf_overrides{};            ///< JSON merged over config.json
};

struct ServingPlan {
  ModelConfig config{};
  CachePlan cache{};
  int64_t max_model_len = 0;  ///< EngineOptions::max_model_len, or what it means by 0
  int64_t max_query_len = 0;  ///< most tokens of one sequence in a step
  PoolLimits pool{};          ///< available_bytes is for the device to fill in
};

/// Reads DIR/config.json. Throws Error(kInvalidArgument) naming the option that the model cannot have.
[[nodiscard]] ServingPlan plan_serving(const std::filesystem::path& directory, const RunnerOptions& options,
                                       const EngineOptions& engine);

}  // namespace quaver
