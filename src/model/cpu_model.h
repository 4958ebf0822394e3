// Gemma 3 and Gemma 4 (dense, text) on the CPU: FP32 activations, weights as stored, K and V in the paged cache.
// gemma.md 1.1 and 2.1 have the equations; everything that differs between the families is in the configuration and
// the weights, so there is one forward pass.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "model/batch.h"
#include "model/ropes.h"
#include "model/weights.h"
#include "ops/rope.h"
#include "quaver/attention.h"
#include "quaver/kv_cache.h"
#include "quaver/model.h"

namespace quaver {

/// What each layer asks of the cache, for plan_cache(). `bf16_layers` keep a BF16 cache whatever `dtype` is.
/// Throws Error(kInvalidArgument) for a layer that the model does not have.
[[nodiscard]] std::vector<LayerCacheSpec> cache_specs(const ModelConfig& config, KvDtype dtype,
                                                      std::span<const int> bf16_layers = {});

struct CpuModelOptions {
  bool batch_invariant = false;  ///< a sequence's results do not depend on its batch-mates, bit for bit
  Precision attention_precision = Precision::kAuto;
  std::optional<AttentionKernel> attention_kernel{};  ///< kCpuEmulated generates with the GPU kernels' numerics
};

/// What one layer computed in one step: for probes. Everything is valid only during the call.
struct LayerObservation {
  int layer = 0;
  const Batch& batch;
  HostKvCache& cache;
  std::span<const float> q;          ///< [T, Hq, D] after norm and RoPE
  std::span<const float> k;          ///< [T, Hkv, D] as handed to the cache, not yet quantised
  std::span<const float> v;          ///< [T, Hkv, D], likewise
  std::span<const float> attention;  ///< [T, Hq, D]
};
using LayerObserver = std::function<void(const LayerObservation&)>;

class CpuModel {
 public:
  /// Throws Error(kInvalidArgument) when the weights are not those of the configuration.
  CpuModel(ModelConfig config, ModelWeights weights, CpuModelOptions options = {});

  /// Throws Error(kUnsupported) with the policy's sentence when attention over a cache of this plan has no kernel.
  void check_attention(const CachePlan& cache_plan) { plan_groups(cache_plan, 1, false); }

  /// Runs the batch: writes its K and V into `cache`, returns the normed last hidden states of batch.logit_rows,
  /// [L, hidden], valid until the next call. Throws what check_attention() throws, and Error(kInvalidArgument) for a
  /// batch that contradicts itself.
  [[nodiscard]] std::span<const float> forward(const Batch& batch, HostKvCache& cache,
                                               const LayerObserver& observer = {});

  /// logits[num_rows, vocab] of hidden states that forward() returned, final softcap included.
  void logits(std::span<const float> hidden_rows, float* logits) const;

  [[nodiscard]] const ModelConfig& config() const noexcept { return config_; }
  [[nodiscard]] const ModelWeights& weights() const noexcept { return weights_; }

 private:
  /// FP32 buffers of one step; they grow to the largest batch and are reused.
  struct Workspace {
    std::vector<float> hidden, normed, projected;  // [T, hidden]
    std::vector<float> q, k, v, attention;         // [T, heads * head_dim] of the widest layer
    std::vector<float> gate, up;                   // [T, intermediate]
    std::vector<float> logit_rows;                 // [L, hidden]
  };
  struct GroupPlan {
    AttentionProblem problem;
    AttentionPlan plan;
  };

  void check_batch(const Batch& batch, const HostKvCache& cache) const;
  void reserve(const Batch& batch);
  void plan_groups(const CachePlan& cache_plan, int max_query_len, bool spans);
  void project_qkv(int layer, int64_t num_tokens);
  void attend(int layer, const Batch& batch, HostKvCache& cache);
  void attention_block(int layer, const Batch& batch, HostKvCache& cache, const LayerObserver& observer);
  void mlp_block(int layer, int64_t num_tokens);

  ModelConfig config_;
  ModelWeights weights_;
  CpuModelOptions options_;
  ModelRopes ropes_;
  std::vector<std::vector<float>> rope_frequencies_;  // by rope shape
  std::vector<RopeTable> rope_tables_;                // by rope shape, of the current step
  std::vector<GroupPlan> group_plans_;                // by cache group, of the current step
  Workspace space_;
};

}  // namespace quaver
