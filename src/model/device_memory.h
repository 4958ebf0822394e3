// What a model needs of a GPU's memory, from its configuration alone: weights, cache, activations. Pure, no GPU.
#pragma once

#include <cstdint>
#include <string>

#include "model/workspace_layout.h"
#include "quaver/kv_cache.h"
#include "quaver/model.h"

namespace quaver {

/// What the engine asks for.
struct DeviceMemoryShape {
  int64_t max_model_len = 1;  ///< prompt and output of one sequence
  int64_t chunk_tokens = 1;   ///< most prompt tokens of one sequence in a step
  WorkspaceShape step{};      ///< of the largest step, decode rows included
};

/// Bytes.
struct DeviceMemory {
  int64_t weights = 0;      ///< matrices, scales, norms; embedding and tied head once
  int64_t workspace = 0;    ///< activations and logits of the largest step, cuBLASLt's own
  int64_t block = 0;        ///< of the cache pool
  int64_t sequence = 0;     ///< cache blocks of one sequence that decodes at max_model_len
  int64_t chunk_pages = 0;  ///< what sliding layers hold on top while a chunk of it is computed

  /// Everything for so many sequences of max_model_len tokens, one of which computes a chunk.
  [[nodiscard]] int64_t total(int64_t num_sequences) const noexcept {
    return weights + workspace + num_sequences * sequence + chunk_pages;
  }
  /// Sequences of max_model_len tokens that run at once in `bytes`.
  [[nodiscard]] int64_t sequences_in(int64_t bytes) const noexcept {
    return bytes > total(0) ? (bytes - total(0)) / sequence : 0;
  }
};

/// The sizes for a model whose matrices are stored as its quantization_config says. Throws what
/// plan_device_weights() throws.
[[nodiscard]] DeviceMemory device_memory(const ModelConfig& config, const CachePlan& plan,
                                         const DeviceMemoryShape& shape);

/// "weights 29.92 GiB, workspace 1.82 GiB, cache 0.77 GiB a sequence and 3.12 GiB for a chunk", for messages.
[[nodiscard]] std::string to_string(const DeviceMemory& memory);

/// "29.92 GiB"
[[nodiscard]] std::string gibibytes(int64_t bytes);

}  // namespace quaver
