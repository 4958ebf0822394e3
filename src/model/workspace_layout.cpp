#include "model/workspace_layout.h"

#include <algorithm>

#include "gemm/packed_fp8/layout.h"
#include "model/ropes.h"
#include "ops/rope_table_width.h"

namespace quaver {
namespace {

constexpr int64_t kAlignment = 256;  // what cuBLASLt likes best of its operands
constexpr int64_t kBf16Bytes = 2;
constexpr int64_t kFloatBytes = 4;

int64_t aligned(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// The widest rows that attention reads and writes.
struct Widths {
  int64_t qkv = 0;
  int64_t attention = 0;
};

Widths widest(const ModelConfig& config) {
  Widths widths;
  for (const LayerConfig& layer : config.layers) {
    const int64_t kv_copies = layer.k_eq_v ? 1 : 2;
    const int64_t heads = config.num_q_heads + kv_copies * layer.num_kv_heads;
    widths.qkv = std::max(widths.qkv, heads * layer.head_dim);
    widths.attention = std::max(widths.attention, int64_t{config.num_q_heads} * layer.head_dim);
  }
  return widths;
}

int64_t input_bytes(const LinearInput& input, int64_t tokens) {
  if (input.kind == InputKind::kBf16) return tokens * input.width * kBf16Bytes;
  return packed_fp8::packed_bytes(tokens, input.width);
}

int64_t scale_bytes(const LinearInput& input, int64_t tokens) {
  switch (input.kind) {
    case InputKind::kPerToken: return tokens * kFloatBytes;
    case InputKind::kPerBlock: return packed_fp8::num_chunks(input.width) * block_scale_stride(tokens) * kFloatBytes;
    case InputKind::kStatic: return kFloatBytes;
    case InputKind::kBf16: break;
  }
  return 0;
}

}  // namespace

int64_t block_scale_stride(int64_t max_tokens) {
  return (max_tokens + 7) / 8 * 8;
}

WorkspaceLayout workspace_layout(const ModelConfig& config, std::span<const LinearInput> inputs, bool gated,
                                 const WorkspaceShape& shape) {
  WorkspaceLayout layout;
  const auto take = [&layout](int64_t bytes) {
    const int64_t offset = layout.bytes;
    layout.bytes += aligned(bytes);
    return offset;
  };
  const int64_t tokens = shape.max_tokens;
  const Widths widths = widest(config);
  layout.hidden = take(tokens * config.hidden_size * kBf16Bytes);
  layout.last_hidden = take(shape.max_sequences * config.hidden_size * kBf16Bytes);
  layout.projected = take(tokens * config.hidden_size * kBf16Bytes);

  layout.qkv = layout.gate_up = layout.bytes;
  layout.attention = layout.qkv + aligned(tokens * widths.qkv * kBf16Bytes);
  const int64_t attention_end = layout.attention + aligned(tokens * widths.attention * kBf16Bytes);
  const int64_t mlp_end = layout.gate_up + aligned(tokens * (gated ? 1 : 2) * config.intermediate_size * kBf16Bytes);
  layout.bytes = std::max(attention_end, mlp_end);

  int64_t most_bytes = 0;
  int64_t most_scale_bytes = 0;
  for (const LinearInput& input : inputs) {
    most_bytes = std::max(most_bytes, input_bytes(input, tokens));
    most_scale_bytes = std::max(most_scale_bytes, scale_bytes(input, tokens));
  }
  layout.input = take(most_bytes);
  layout.input_scales = take(most_scale_bytes);
  for (const RopeShape& rope : model_ropes(config).shapes) {
    layout.rope.push_back(take(tokens * device_ops::rope_table_width(rope.rotary_pairs) * kFloatBytes));
  }
  layout.final_hidden = take(shape.max_logit_rows * config.hidden_size * kBf16Bytes);
  layout.logits = take(shape.max_logit_rows * config.vocab_size * kFloatBytes);
  return layout;
}

}  // namespace quaver
