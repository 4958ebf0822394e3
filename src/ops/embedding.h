// Token embedding, first step of a forward pass.
#pragma once

#include <cstdint>
#include <span>

#include "quaver/tensor.h"

namespace quaver {

/// out[t] = table[token_ids[t]] * scale in FP32. `table` is [vocab, hidden], f32 or bf16. Gemma scales by
/// sqrt(hidden), rounded to the checkpoint's dtype (ModelConfig::embedding_scale).
/// Throws Error(kInvalidArgument) for a token outside the vocabulary.
void embed_tokens(const ConstTensorView& table, std::span<const int32_t> token_ids, double scale, float* out);

}  // namespace quaver
