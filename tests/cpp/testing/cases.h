// Attention cases over a paged cache, for every path and backend: random ragged batches whose page order is shuffled,
// whose unused bytes are NaN codes, whose block tables end in -1 and whose outputs start as NaN.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "attention/cpu/oracle.h"
#include "core/bf16.h"
#include "quaver/attention.h"

namespace quaver::testing {

/// A value of Q, K or V. For Q `token` counts from the sequence's first query row, for K and V from its first key.
using Element = std::function<float(int sequence, int64_t token, int head, int dim)>;

struct CaseSpec {
  std::vector<int32_t> query_lens;  ///< rows of each sequence in this call
  std::vector<int32_t> kv_lens;     ///< keys of each sequence
  int num_q_heads = 1;
  KvLayout kv{};
  bool causal = true;
  int window = 0;
  float softcap = 0.0F;
  float softmax_scale = 0.0F;  ///< 0: 1 / sqrt(head_dim_k)
  bool sinks = false;          ///< N(0, 1)
  bool scales = false;         ///< k_scale, v_scale [Hkv], not powers of two
  bool descales = false;       ///< q, k, v descales [B, Hkv], powers of two and others
  int span_len = 0;            ///< > 0: alternate text and image spans of about this many tokens
  DType q_dtype = DType::kBF16;
  DType out_dtype = DType::kBF16;
  uint64_t seed = 1;
  Element query{};  ///< default: N(0, 1), rounded to q_dtype
  Element key{};    ///< default: N(0, 1); stored as the cache stores it (divided by k_scale, rounded)
  Element value{};  ///< default: N(0, 1)
};

/// A batch in memory. Views in `args` point into this object's vectors, so it moves but does not copy.
struct Case {
  explicit Case(const CaseSpec& spec);
  Case(Case&&) = default;
  Case& operator=(Case&&) = default;
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;
  ~Case() = default;

  /// Fills out and lse with NaN.
  void poison_outputs();
  /// The oracle over all sequences, rows in the order of args.out.
  [[nodiscard]] OracleOutput expected() const;
  /// The oracle's view of one sequence.
  [[nodiscard]] OracleInput oracle_input(int sequence) const;
  [[nodiscard]] std::vector<float> out_values() const;
  [[nodiscard]] std::span<const float> lse_values() const { return lse; }
  [[nodiscard]] int64_t num_rows() const { return static_cast<int64_t>(lse.size()); }

  AttentionProblem problem{};
  AttentionArgs args{};

  std::vector<int32_t> query_start;
  std::vector<int32_t> seq_lens;
  std::vector<int32_t> block_table;
  std::vector<uint8_t> pages;
  std::vector<Bf16> q_bf16;           ///< one of the two holds what args.q shows
  std::vector<float> q;               ///< the same values
  std::vector<std::vector<float>> k;  ///< by sequence, [S, Hkv, Dk]: what the cache holds, dequantised
  std::vector<std::vector<float>> v;
  std::vector<float> k_scale, v_scale, q_descale, k_descale, v_descale, sinks, logit_descale;
  std::vector<int32_t> span_ids;
  std::vector<Bf16> out_bf16;
  std::vector<float> out_f32;
  std::vector<float> lse;
};

/// Lengths that exercise every edge of pages and tiles: 0, 1, primes, one off and exactly at 16, 64 and 128, and more.
[[nodiscard]] std::vector<int32_t> ragged_lengths();

}  // namespace quaver::testing
