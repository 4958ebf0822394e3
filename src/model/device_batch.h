// One forward pass as data in device memory: a Batch whose arrays lie there. Plain pointers, no CUDA header.
#pragma once

#include <cstdint>
#include <vector>

namespace quaver {

/// The host knows the counts; what the arrays hold only the device needs. A decode step may be padded: sequences
/// without keys, tokens of slot -1.
struct DeviceBatch {
  int64_t num_tokens = 0;       ///< T
  int64_t num_sequences = 0;    ///< B
  int64_t num_logit_rows = 0;   ///< L
  bool one_token_each = false;  ///< every sequence has one query token: the plans for decode serve
  /// All keys but those of its tokens were there before the step. Not so where a newcomer begins with cached pages:
  /// they may be filled in this very step.
  bool older_keys_exist = false;
  /// Logits are wanted of nothing but last tokens, and `logit_rows` are numbers of sequences: once its K and V are
  /// stored, the last layer goes on with the last token of each sequence alone.
  bool last_tokens_only = false;
  const int32_t* token_ids = nullptr;    ///< [T]
  const int32_t* positions = nullptr;    ///< [T]
  const int32_t* query_start = nullptr;  ///< [B+1]
  const int32_t* seq_lens = nullptr;     ///< [B]
  const int32_t* logit_rows = nullptr;   ///< [L]: tokens, or sequences
  const int32_t* span_ids = nullptr;     ///< [T]: Batch::span_ids; null: text only

  /// One per cache group.
  struct Group {
    const int32_t* block_table = nullptr;  ///< [B, max_pages]; entries that no new token sees may hold anything
    int64_t max_pages = 0;
    const int64_t* slots = nullptr;  ///< [T]; -1: K and V are not stored
  };
  std::vector<Group> groups;
};

}  // namespace quaver
