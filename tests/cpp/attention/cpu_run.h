// Runs a Case, or some rows of one of its sequences, through the policy and run_attention() on the CPU.
#pragma once

#include <array>
#include <vector>

#include "attention/policy.h"
#include "testing/cases.h"

namespace quaver::testing {

inline void run(Case& c) {
  c.poison_outputs();
  run_attention(c.problem, plan_or_throw(c.problem), c.args);
}

/// Rows [token_first, token_last) of one sequence in a call of their own, as if the later tokens did not exist yet.
/// Writes their rows of the case's outputs and leaves the others alone.
inline void run_rows(Case& c, int sequence, int64_t token_first, int64_t token_last) {
  const auto b = static_cast<size_t>(sequence);
  const int32_t first = c.query_start[b];
  const int32_t q_len = c.query_start[b + 1] - first;
  const std::array<int32_t, 2> query_start{first + static_cast<int32_t>(token_first),
                                           first + static_cast<int32_t>(token_last)};
  const int32_t seq_len = c.seq_lens[b] - q_len + static_cast<int32_t>(token_last);
  AttentionArgs args = c.args;
  args.query_start = {query_start.data(), DType::kI32, {2}};
  args.seq_lens = {&seq_len, DType::kI32, {1}};
  const auto row_of = [&](ConstTensorView& view) {
    if (!view.given()) return;
    const int64_t bytes = sequence * view.stride(0) * dtype_bytes(view.dtype);
    view.data = static_cast<const std::byte*>(view.data) + bytes;
    view.shape[0] = 1;
  };
  for (ConstTensorView* view : {&args.block_table, &args.q_descale, &args.k_descale, &args.v_descale}) row_of(*view);
  run_attention(c.problem, plan_or_throw(c.problem), args);
}

}  // namespace quaver::testing
