// One forward pass, as data: built by the scheduler (or the generate loop) through BatchBuilder, read by a runner, CPU
// or CUDA.
#pragma once

#include <cstdint>
#include <vector>

namespace quaver {

/// Tokens of B sequences, concatenated (T in all). Decode rows and prefill chunks look the same.
struct Batch {
  std::vector<int32_t> token_ids;    ///< [T]
  std::vector<int32_t> positions;    ///< [T]
  std::vector<int32_t> query_start;  ///< [B+1]: sequence b owns tokens query_start[b] … query_start[b+1]-1
  std::vector<int32_t> seq_lens;     ///< [B]: keys after this step, the new tokens included

  /// One per cache group (CachePlan::groups).
  struct Group {
    std::vector<int32_t> block_table;  ///< [>= B, max_pages] row-major; -1 where unused; rows from B on mean nothing
    int32_t max_pages = 0;             ///< at least what the longest sequence needs
    std::vector<int64_t> slots;        ///< [T]: where each token's K and V go
  };
  std::vector<Group> groups;

  /// [T]: image spans as AttentionArgs::span_ids has them, -1 in text; empty: text only. No sequence's part of a batch
  /// begins or ends inside a span.
  std::vector<int32_t> span_ids;

  std::vector<int32_t> logit_rows;  ///< [L]: tokens whose logits are wanted, ascending

  [[nodiscard]] int64_t num_tokens() const noexcept { return static_cast<int64_t>(token_ids.size()); }
  [[nodiscard]] int64_t num_sequences() const noexcept { return static_cast<int64_t>(seq_lens.size()); }
};

}  // namespace quaver
