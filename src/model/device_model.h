// Gemma 3 and Gemma 4 (dense, text) on one GPU: CpuModel's twin over DeviceWeights, the fused ops and the attention
// kernels. Everything is allocated at construction. A pass neither allocates, synchronises nor looks at device data, so
// it can be a CUDA graph. One stream at a time. CUDA builds only.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "attention/device_attention.h"
#include "core/device_info.h"
#include "kv_cache/device_kv_cache.h"
#include "model/device_batch.h"
#include "model/device_weights.h"
#include "model/step_cost.h"
#include "model/workspace_layout.h"
#include "ops/cuda/device_ops.h"
#include "quaver/attention.h"
#include "quaver/model.h"

namespace quaver {

struct DeviceModelOptions {
  WorkspaceShape workspace{};
  int64_t max_query_len = 1;  ///< most tokens of one sequence in a pass
  /// A token's results have the same bits whatever else is in the pass, and whether its prompt comes at once or in
  /// chunks of two tokens or more: a sequence's only token gets the decode kernel, two or more get the prefill kernel.
  /// DeviceBatch::last_tokens_only must be false.
  bool batch_invariant = false;
  int64_t max_model_len = 0;  ///< batch_invariant: most tokens of a sequence
  Precision attention_precision = Precision::kAuto;
  std::optional<AttentionKernel> attention_kernel{};  ///< of every pass, or refused
};

/// Told before the first launch of each part of a pass: for profiles.
using PartObserver = std::function<void(StepPart)>;

class DeviceModel {
 public:
  /// On the current device, which is `device`. Throws Error(kUnsupported) with the policy's sentence when attention
  /// over a cache of this plan has no kernel, Error(kOutOfMemory).
  DeviceModel(ModelConfig config, DeviceWeights weights, const CachePlan& plan, const DeviceInfo& device,
              const DeviceModelOptions& options);

  /// Runs the batch: writes its K and V into `cache` and leaves the residual stream for logits().
  void forward(const DeviceBatch& batch, const DeviceKvCache& cache, cudaStream_t stream,
               const PartObserver& observer = {});

  /// Logits of batch.logit_rows[first_row …] of the last forward(), without the final softcap: f32[num_rows, vocab],
  /// overwritten by the next call. At most WorkspaceShape::max_logit_rows rows.
  [[nodiscard]] float* logits(const DeviceBatch& batch, int64_t first_row, int64_t num_rows, cudaStream_t stream);

  [[nodiscard]] const ModelConfig& config() const noexcept { return config_; }
  [[nodiscard]] const DeviceWeights& weights() const noexcept { return weights_; }
  [[nodiscard]] int64_t max_logit_rows() const noexcept { return options_.workspace.max_logit_rows; }
  /// Formats of the linear layers, for step_costs().
  [[nodiscard]] std::vector<LayerFacts> facts() const;

 private:
  /// One cache group: its kernels for steps of one token a sequence and for all others.
  struct GroupAttention {
    DeviceAttention decode;
    DeviceAttention mixed;
    bool spans = false;  ///< its layers, all of one kind, widen their masks by image spans
  };
  struct Rope {
    DeviceBuffer<float> frequencies;
    int rotary_pairs = 0;
    float* table = nullptr;  // of the current pass
  };
  /// The workspace, as pointers.
  struct Space {
    Bf16* hidden = nullptr;
    Bf16* last_hidden = nullptr;
    Bf16* projected = nullptr;
    Bf16* qkv = nullptr;
    Bf16* attention = nullptr;
    Bf16* gate_up = nullptr;
    void* input = nullptr;
    float* input_scales = nullptr;
    Bf16* final_hidden = nullptr;
    float* logits = nullptr;
  };
  /// What every step of a pass needs to know.
  struct Pass {
    const DeviceBatch& batch;
    const DeviceKvCache& cache;
    cudaStream_t stream = nullptr;
    const PartObserver& observer;
    int64_t num_rows = 0;    ///< tokens; sequences once narrowed
    Bf16* hidden = nullptr;  ///< their residual stream
    bool narrowed = false;   ///< last tokens only: from the last layer's attention on, where the batch says so
    void begin(StepPart part) const {
      if (observer) observer(part);
    }
  };

  [[nodiscard]] DeviceAttention make_attention(const CacheGroup& group, int64_t max_query_len, bool spans,
                                               const DeviceInfo& device) const;
  void allocate();
  /// A BF16 cache stores the values themselves; only FP8 codes have scales.
  [[nodiscard]] bool has_scales(size_t group) const { return plan_.groups[group].layout.dtype == KvDtype::kE4M3; }
  [[nodiscard]] GemmInput input_of(const DeviceLinear& linear) const;
  [[nodiscard]] TensorView rows(Bf16* data, int64_t num_rows, int64_t width) const;
  [[nodiscard]] AttentionArgs attention_args(const Pass& pass, size_t group) const;
  /// A token attends to what lies in front of it: no span has several.
  [[nodiscard]] static bool one_token_each(const Pass& pass);
  [[nodiscard]] DeviceAttention& attention(const Pass& pass, size_t group);

  void prepare(const Pass& pass);
  void project_and_append(int layer, const Pass& pass);
  /// Goes on with the last token of each sequence.
  void narrow(int layer, Pass& pass);
  void attention_block(int layer, Pass& pass);
  /// gelu_tanh(gate) * up as the down product reads it.
  [[nodiscard]] GemmInput activate(int layer, const Pass& pass);
  void mlp_block(int layer, const Pass& pass);
  /// hidden += norm(projected); what `next` (null: nothing) reads.
  void add_norm(const Pass& pass, const float* post_norm, float layer_scalar, const float* next_norm,
                const DeviceLinear* next);

  ModelConfig config_;
  DeviceWeights weights_;
  CachePlan plan_;
  DeviceModelOptions options_;
  Device where_;
  std::vector<GroupAttention> attention_;  // by cache group
  std::vector<Rope> ropes_;                // by rope shape
  std::vector<size_t> rope_of_layer_;
  DeviceBuffer<int32_t> counting_;  // 0, 1, 2, …: query_start of one token each
  DeviceBuffer<uint8_t> memory_;
  Space space_;  // in memory_
};

}  // namespace quaver
