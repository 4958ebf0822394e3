// Attention in float64 on dense tensors: the reference that every other path is measured against.
// Written to be obviously right: one row at a time, all keys, no tiles, no online softmax.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace quaver {

/// One sequence. Values are what the cache really holds (dequantised), so errors of K and V storage do not count.
struct OracleInput {
  int num_q_heads = 1;  ///< a multiple of num_kv_heads
  int num_kv_heads = 1;
  int head_dim_k = 0;
  int head_dim_v = 0;
  std::span<const float> q{};      ///< [T, Hq, Dk]; row i sits at position S - T + i
  std::span<const float> k{};      ///< [S, Hkv, Dk]
  std::span<const float> v{};      ///< [S, Hkv, Dv]
  double softmax_scale = 1.0;      ///< multiplies q·k before softcap
  bool causal = true;              ///< position p sees keys 0 … p; else all keys
  int64_t window = 0;              ///< W: keys before p - W + 1 (not causal: also after p + W - 1) are hidden; 0: none
  double softcap = 0.0;            ///< logits become softcap * tanh(logit / softcap); 0: none
  std::span<const float> sinks{};  ///< [Hq] or empty: a logit per head that only the normaliser sees
  std::span<const int32_t> span_ids{};     ///< [T] or empty: query tokens with equal ids >= 0 see each other
  std::span<const float> logit_descale{};  ///< [Hkv] or empty (1.0): multiplies the logits before softcap
  std::span<const float> value_descale{};  ///< [Hkv] or empty (1.0): multiplies the output
};

struct OracleOutput {
  std::vector<double> out;  ///< [T, Hq, Dv]; 0 for a row that sees no key
  std::vector<double> lse;  ///< [T, Hq]: natural log, sink included; -inf for a row that sees nothing
};

/// Throws Error(kInvalidArgument) for a tensor whose size does not fit the dimensions.
[[nodiscard]] OracleOutput attention_oracle(const OracleInput& input);

/// Does the token at `position` see key `key`? (Spans only name query tokens: the last T keys.)
[[nodiscard]] bool oracle_sees(const OracleInput& input, int64_t position, int64_t key);

}  // namespace quaver
