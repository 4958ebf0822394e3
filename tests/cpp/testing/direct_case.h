// Calls of DirectAttention in every form, dtype and memory order, with the oracle's answer: for all backends.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/cpu/oracle.h"
#include "quaver/direct_attention.h"

namespace quaver::testing {

/// How Q, K and V lie in memory. What lies between elements is NaN.
enum class Order : uint8_t {
  kDense,       ///< [(batch,) token, head, dim]
  kHeadsFirst,  ///< [(batch,) head, token, dim], seen as above: what frameworks call [B, H, S, D]
  kGaps,        ///< an odd number of elements between heads and between tokens, rows at odd addresses
  kColumns,     ///< every second element of a row
};

struct DirectSpec {
  std::vector<int32_t> query_lens;
  std::vector<int32_t> key_lens;
  bool batched = false;  ///< all lengths are then equal
  int num_q_heads = 1;
  int num_kv_heads = 1;
  int head_dim_k = 64;
  int head_dim_v = 64;
  DType q = DType::kBF16;
  DType k = DType::kE4M3;  ///< kU8: E4M3 codes
  DType v = DType::kE4M3;
  KvDtype stored = KvDtype::kE4M3;
  int page_size = 64;
  Order order = Order::kDense;
  bool causal = true;
  int window = 0;
  float softcap = 0.0F;
  bool sinks = false;
  bool scales = false;    ///< k_scale and v_scale
  bool descales = false;  ///< q, k and v
  int span_len = 0;       ///< > 0: every other run of so many tokens is an image
  DType out = DType::kF32;
  uint64_t seed = 1;
};

/// A call in host memory. Views in `args` point into this object, so it moves but does not copy.
struct DirectCase {
  explicit DirectCase(const DirectSpec& spec);
  DirectCase(DirectCase&&) = default;
  DirectCase& operator=(DirectCase&&) = default;
  DirectCase(const DirectCase&) = delete;
  DirectCase& operator=(const DirectCase&) = delete;
  ~DirectCase() = default;

  /// Fills out and lse with NaN.
  void poison_outputs();
  /// The oracle on the values as they are stored.
  [[nodiscard]] OracleOutput expected() const;
  [[nodiscard]] std::vector<float> out_values() const;

  AttentionProblem problem{};
  DirectAttentionArgs args{};

  /// Rows of Q, K or V, strided, and their values.
  struct Rows {
    std::vector<uint8_t> bytes;
    ConstTensorView view;
    std::vector<std::vector<float>> values;  ///< by sequence, [tokens, heads, dim]
  };
  Rows q, k, v;  ///< k and v: as stored, times their scales
  std::vector<int32_t> query_start, key_start, span_ids;
  std::vector<float> k_scale, v_scale, q_descale, k_descale, v_descale, sinks;
  std::vector<uint8_t> out_bytes;
  std::vector<float> lse;
};

/// Specs that together cover forms, dtypes, orders and features; head dims that the FP8 kernels take, or others.
[[nodiscard]] std::vector<DirectSpec> direct_specs();

}  // namespace quaver::testing
