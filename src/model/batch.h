// One forward pass, as data: built by the scheduler (or the generate loop), read by a runner, CPU or CUDA.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv_cache/manager.h"

namespace quaver {

/// Tokens of B sequences, concatenated (T in all). Decode rows and prefill chunks look the same.
struct Batch {
  std::vector<int32_t> token_ids;    ///< [T]
  std::vector<int32_t> positions;    ///< [T]
  std::vector<int32_t> query_start;  ///< [B+1]: sequence b owns tokens query_start[b] … query_start[b+1]-1
  std::vector<int32_t> seq_lens;     ///< [B]: keys after this step, the new tokens included

  /// One per cache group (CachePlan::groups).
  struct Group {
    std::vector<int32_t> block_table;  ///< [B, max_pages] row-major; -1 where unused
    int32_t max_pages = 0;
    std::vector<int64_t> slots;  ///< [T]: where each token's K and V go
  };
  std::vector<Group> groups;

  std::vector<int32_t> logit_rows;  ///< [L]: tokens whose logits are wanted, ascending

  [[nodiscard]] int64_t num_tokens() const noexcept { return static_cast<int64_t>(token_ids.size()); }
  [[nodiscard]] int64_t num_sequences() const noexcept { return static_cast<int64_t>(seq_lens.size()); }
};

/// One sequence's share of a step.
struct SequenceStep {
  const SequencePages* pages = nullptr;   ///< after KvManager::append() made room for `tokens`
  std::span<const int32_t> tokens{};      ///< the last tokens of the sequence, at least one
  std::span<const int32_t> logit_rows{};  ///< indices into `tokens`, ascending
};

/// Fills `batch` (reusing its memory) with the steps, in order.
void build_batch(const KvManager& manager, std::span<const SequenceStep> steps, Batch& batch);

}  // namespace quaver
