// Weights of a Gemma model, by name and checked, as views into the checkpoint's mapping.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "gemm/linear.h"
#include "quaver/model.h"

namespace quaver {

struct Checkpoint;

/// Norm weights are effective multipliers in FP32: 1 + w for Gemma 3, w for Gemma 4.
struct LayerWeights {
  std::vector<float> input_norm, post_attention_norm, pre_feedforward_norm, post_feedforward_norm;  ///< [hidden]
  std::vector<float> q_norm, k_norm;                                                                ///< [head_dim]
  LinearWeight q, k, v, o;  ///< v is not given on K=V layers
  LinearWeight gate, up, down;
  float layer_scalar = 1.0F;            ///< Gemma 4: multiplies the residual stream at the end of the layer
  std::vector<float> k_scale, v_scale;  ///< [num_kv_heads], positive and finite: real value = stored * scale
};

struct ModelWeights {
  ConstTensorView embedding;  ///< [vocab, hidden] f32 or bf16
  LinearWeight lm_head;       ///< the embedding itself when tied
  std::vector<float> final_norm;
  std::vector<LayerWeights> layers;
  std::shared_ptr<void> storage;   ///< keeps mappings and converted tensors alive
  std::vector<std::string> notes;  ///< lines for the user: scales derived, unindexed files ignored, …
  int64_t bytes = 0;               ///< step_bytes()
};

/// Bytes of all matrices that one decode step reads: everything but the embedding, unless it is the head too.
[[nodiscard]] int64_t step_bytes(const ModelWeights& weights);

/// --kv-scales: where cache scales come from when the checkpoint has none.
enum class KvScalePolicy : uint8_t { kAuto, kOne };

/// Loads *.safetensors of `directory` (single file, or as model.safetensors.index.json says).
/// Throws Error naming every missing tensor or file, or the tensor with its shape/dtype and the expected one.
[[nodiscard]] ModelWeights load_weights(const std::filesystem::path& directory, const ModelConfig& config,
                                        KvScalePolicy kv_scales = KvScalePolicy::kAuto);

/// The same for an open checkpoint (safetensors.h), whose files the result keeps mapped.
[[nodiscard]] ModelWeights load_weights(Checkpoint checkpoint, const ModelConfig& config, KvScalePolicy kv_scales);

/// Random weights of the true shapes (--load-format dummy): same bytes and FLOPs, activations stay in range.
[[nodiscard]] ModelWeights dummy_weights(const ModelConfig& config, uint64_t seed);

}  // namespace quaver
