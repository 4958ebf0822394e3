// Weights of a Gemma model in GPU memory, as one step on the GPU reads them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/cuda.h"
#include "gemm/device_linear.h"
#include "model/weights.h"
#include "quaver/model.h"

namespace quaver {

/// All pointers are device memory of DeviceWeights. Norm weights are effective multipliers (1 + w for Gemma 3).
struct DeviceLayerWeights {
  DeviceLinear qkv;                              ///< rows of q, k, v; k_eq_v layers: of q, k
  DeviceLinear o;                                ///< [hidden, Hq * head_dim]
  DeviceLinear gate_up;                          ///< rows of gate and up in turn, or of gate, then of up (gated())
  DeviceLinear down;                             ///< [hidden, intermediate]
  const float* input_norm = nullptr;             ///< [hidden]
  const float* post_attention_norm = nullptr;    ///< [hidden]
  const float* pre_feedforward_norm = nullptr;   ///< [hidden]
  const float* post_feedforward_norm = nullptr;  ///< [hidden]
  const float* q_norm = nullptr;                 ///< [head_dim]
  const float* k_norm = nullptr;                 ///< [head_dim]
  const float* k_scale = nullptr;                ///< [num_kv_heads]: real value = stored * scale
  const float* v_scale = nullptr;                ///< [num_kv_heads]
  float layer_scalar = 1.0F;
};

/// Of each of the three pinned buffers that a checkpoint goes through.
inline constexpr int64_t kStagingSlotBytes = int64_t{16} << 20;

struct DeviceWeights {
  std::unique_ptr<DeviceGemm> gemm;   ///< the kernels behind every DeviceLinear: one stream at a time
  const Bf16* embedding = nullptr;    ///< [vocab, hidden]
  DeviceLinear lm_head;               ///< the embedding itself when tied
  const float* final_norm = nullptr;  ///< [hidden]
  std::vector<DeviceLayerWeights> layers;
  std::vector<std::string> notes;  ///< lines for the user
  int64_t bytes = 0;               ///< of GPU memory
  int64_t step_bytes = 0;          ///< of all matrices, as one decode step reads them
  DeviceBuffer<uint8_t> memory;    ///< what everything above points into
};

/// Loads the checkpoint in `directory` onto the current GPU. Matrices go from the mapped files through three small
/// pinned buffers: the host keeps no copy, and the pages of the files leave the process as they are read. Waits until
/// all is there. Throws Error naming the tensor and its file for whatever the checkpoint has wrong or the GPU has no
/// product for, and Error(kOutOfMemory) with the bytes needed and free. `order`: of all products.
[[nodiscard]] DeviceWeights load_device_weights(const std::filesystem::path& directory, const ModelConfig& config,
                                                KvScalePolicy kv_scales, cudaStream_t stream,
                                                packed_fp8::SumOrder order = packed_fp8::SumOrder::kAny,
                                                int64_t slot_bytes = kStagingSlotBytes);

/// --load-format dummy, made on the GPU: the same values as dummy_weights(), bit for bit.
[[nodiscard]] DeviceWeights dummy_device_weights(const ModelConfig& config, uint64_t seed, cudaStream_t stream,
                                                 packed_fp8::SumOrder order = packed_fp8::SumOrder::kAny);

}  // namespace quaver
