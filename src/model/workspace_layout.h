// Where the intermediate values of a forward pass on the GPU lie, in one block of memory sized once. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "gemm/gemm_input.h"
#include "quaver/model.h"

namespace quaver {

/// The input of one linear layer: [T, width] as `kind` says.
struct LinearInput {
  int64_t width = 0;
  InputKind kind = InputKind::kBf16;
};

/// The largest step.
struct WorkspaceShape {
  int64_t max_tokens = 1;      ///< T
  int64_t max_sequences = 1;   ///< B
  int64_t max_logit_rows = 1;  ///< L: rows whose logits exist at once
};

/// Offsets in bytes, multiples of 256.
struct WorkspaceLayout {
  int64_t hidden = 0;       ///< [T, hidden] bf16: the residual stream
  int64_t last_hidden = 0;  ///< [B, hidden] bf16: of last tokens, in the last layer
  int64_t projected = 0;    ///< [T, hidden] bf16: of the output and down products
  int64_t qkv = 0;          ///< [T, (Hq + 2 Hkv) D] bf16, of the widest layer
  int64_t attention = 0;    ///< [T, Hq D] bf16, of the widest layer
  int64_t gate_up = 0;  ///< [T, 2 intermediate] bf16, or [T, intermediate] where every product applies its gate itself;
                        ///< takes the place of qkv and attention, which are done by then
  int64_t input = 0;    ///< what the next product reads, in the form that takes the most bytes
  int64_t input_scales = 0;   ///< its scales
  std::vector<int64_t> rope;  ///< by entry of model_ropes(): [T, rope table] f32
  int64_t final_hidden = 0;   ///< [L, hidden] bf16
  int64_t logits = 0;         ///< [L, vocab] f32
  int64_t bytes = 0;
};

/// Scales of one input with block scales lie so far apart from one 128-column block to the next: as PackedTokens asks.
[[nodiscard]] int64_t block_scale_stride(int64_t max_tokens);

/// `inputs`: of every linear layer but the LM head, which takes BF16 rows. `gated`: all gate_up products apply the
/// gate.
[[nodiscard]] WorkspaceLayout workspace_layout(const ModelConfig& config, std::span<const LinearInput> inputs,
                                               bool gated, const WorkspaceShape& shape);

}  // namespace quaver
