// The fused elementwise steps of a forward pass on the GPU, in the order of a layer. Each is one launch on `stream`
// without synchronisation or allocation, fits into a graph, starts beside the kernel in front of it (programmatic
// launch; embed_tokens() after it has ended) and gives the same bits for a token whatever the other tokens are.
// Equations: gemma.md 1.1 and 2.1; the CPU's side is model/cpu_model.cpp. Norms, rotation and the gate compute in FP32;
// the residual stream is BF16.
//
// Pointers are device memory; matrices are dense and row-major and begin at multiples of 16 bytes. Norm weights are
// effective multipliers (1 + w for Gemma 3). Rows have a multiple of 8 columns: hidden_size up to 8,192, others up to
// 21,504. Norm weights, scales and slots are read before the kernel in front has ended: they are written before a step
// begins, and complete. With 0 tokens nothing happens. Host functions throw
// Error(kInvalidArgument) before anything is launched.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/bf16.h"
#include "gemm/gemm_input.h"
#include "ops/rope_table_width.h"
#include "quaver/kv_cache.h"
#include "quaver/tensor.h"

namespace quaver::device_ops {

struct EmbedArgs {
  const Bf16* table = nullptr;  ///< [vocab_size, hidden_size]
  int64_t vocab_size = 0;
  const int32_t* token_ids = nullptr;  ///< [T]; outside the vocabulary (padding): a row of zeros
  float scale = 1.0F;                  ///< ModelConfig::embedding_scale
  int64_t num_tokens = 0;
  int64_t hidden_size = 0;
  Bf16* hidden = nullptr;  ///< [T, hidden_size]
};
/// hidden = table[token] * scale.
void embed_tokens(const EmbedArgs& args, cudaStream_t stream);

struct RopeTableArgs {
  const int32_t* positions = nullptr;  ///< [T]
  const float* frequencies = nullptr;  ///< [rotary_pairs]: rope_frequencies() of the layer kind
  int rotary_pairs = 0;
  int64_t num_tokens = 0;
  float* table = nullptr;  ///< [T, rope_table_width(rotary_pairs)]: cos, sin, cos, sin, …
};
/// Cosines and sines of a step's positions, once a step for each kind of layer: the bits of the CPU's rope_table().
void rope_table(const RopeTableArgs& args, cudaStream_t stream);

struct NormQuantizeArgs {
  const Bf16* hidden = nullptr;  ///< [T, hidden_size]
  const float* norm = nullptr;   ///< [hidden_size]
  float eps = 1e-6F;
  int64_t num_tokens = 0;
  int64_t hidden_size = 0;
  GemmInput out{};
};
/// out = rms_norm(hidden, norm).
void norm_quantize(const NormQuantizeArgs& args, cudaStream_t stream);

struct QkvAppendArgs {
  /// [T, (Hq + 2 Hkv) D]: Q, K, V of a token; with k_eq_v [T, (Hq + Hkv) D], and V is K as projected. Q is replaced in
  /// place by its norm, rotated; K and V stay.
  Bf16* qkv = nullptr;
  int64_t num_tokens = 0;
  int num_q_heads = 0;
  KvLayout layout{};  ///< Hkv, D = head_dim_k = head_dim_v: a multiple of 16 up to 512
  bool k_eq_v = false;
  const float* q_norm = nullptr;  ///< [D]
  const float* k_norm = nullptr;  ///< [D]
  bool v_norm = false;            ///< Gemma 4: V is normed without a weight
  float eps = 1e-6F;
  int rotary_pairs = 0;               ///< up to D/2; the others keep their angle
  const float* rope_table = nullptr;  ///< [T, rope_table_width(rotary_pairs)]
  const int64_t* slots = nullptr;     ///< [T]: page id * page_size + offset, all different; -1: K and V are not stored
  const float* k_scale = nullptr;     ///< [Hkv], E4M3 pages: stored K = K / k_scale; null: 1
  const float* v_scale = nullptr;     ///< [Hkv]
  TensorView pages;                   ///< u8[num_pages, >= page_bytes(layout)], bytes of a page dense
};
/// Q and K: norm and rotation; V: norm where the model has one. K and V go to their pages, Q stays where it is.
void qkv_append(const QkvAppendArgs& args, cudaStream_t stream);

struct QuantizeArgs {
  const Bf16* rows = nullptr;  ///< [T, width]
  int64_t num_tokens = 0;
  int64_t width = 0;
  GemmInput out{};  ///< an E4M3 kind: BF16 rows are a GEMM's input as they are
};
/// out = rows.
void quantize(const QuantizeArgs& args, cudaStream_t stream);

struct AddNormQuantizeArgs {
  const Bf16* projected = nullptr;  ///< [T, hidden_size]: what o_proj or down_proj gave
  const float* post_norm = nullptr;
  Bf16* hidden = nullptr;     ///< [T, hidden_size], updated
  float layer_scalar = 1.0F;  ///< Gemma 4, at the end of a layer
  /// Norm in front of the next linear layer; null (after the last layer): only `hidden` is written.
  const float* next_norm = nullptr;
  float eps = 1e-6F;
  int64_t num_tokens = 0;
  int64_t hidden_size = 0;
  GemmInput out{};
};
/// hidden = (hidden + rms_norm(projected, post_norm)) * layer_scalar; out = rms_norm(hidden as stored, next_norm).
void add_norm_quantize(const AddNormQuantizeArgs& args, cudaStream_t stream);

struct LastRowsArgs {
  const Bf16* rows = nullptr;            ///< [T, stride]
  int64_t stride = 0;                    ///< a multiple of 8
  const int32_t* query_start = nullptr;  ///< [B+1], rising
  int64_t num_sequences = 0;
  int64_t width = 0;    ///< columns copied
  Bf16* out = nullptr;  ///< [B, width]
};
/// out[b] = rows[query_start[b + 1] - 1]: the last token of every sequence.
void last_rows(const LastRowsArgs& args, cudaStream_t stream);

struct GegluQuantizeArgs {
  const Bf16* gate_up = nullptr;  ///< [T, 2 * intermediate_size]: the gate first
  int64_t num_tokens = 0;
  int64_t intermediate_size = 0;
  GemmInput out{};
};
/// out = gelu_tanh(gate) * up.
void geglu_quantize(const GegluQuantizeArgs& args, cudaStream_t stream);

struct FinalNormArgs {
  const Bf16* hidden = nullptr;   ///< [T, hidden_size]
  const int32_t* rows = nullptr;  ///< [L]: rows of hidden; negative (padding): nothing is written
  int64_t num_rows = 0;
  int64_t hidden_size = 0;
  const float* norm = nullptr;
  float eps = 1e-6F;
  Bf16* out = nullptr;  ///< [L, hidden_size]
};
/// out[l] = rms_norm(hidden[rows[l]], norm).
void final_norm(const FinalNormArgs& args, cudaStream_t stream);

}  // namespace quaver::device_ops
