// A step's arrays in one block of memory: written by the host, uploaded by one copy, read on the device where the host
// says they lie. Pure functions; the CUDA runner (device_runner.h) owns the memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/runner.h"
#include "quaver/kv_cache.h"

namespace quaver {

/// What decides where everything lies. All offsets but those of the tables depend on the first three numbers only, so
/// the arrays of every decode step of one padded size have the same addresses: a CUDA graph may know them.
struct StepShape {
  int64_t num_tokens = 0;              ///< T
  int64_t num_sequences = 0;           ///< B
  int64_t num_logit_rows = 0;          ///< L
  bool last_tokens_only = false;       ///< wants_last_tokens_only(): DeviceBatch's
  bool spans = false;                  ///< with span_ids
  std::vector<int64_t> table_columns;  ///< by cache group: most page ids that a sequence of the step needs
};

/// Offsets in bytes, multiples of 16.
struct StepLayout {
  int64_t token_ids = 0;       ///< [T] i32; -1 where feedback supplies the token
  int64_t positions = 0;       ///< [T] i32
  int64_t feedback_slots = 0;  ///< [T] i32: slot whose last token is token_ids[row]; -1: none
  int64_t query_start = 0;     ///< [B+1] i32
  int64_t seq_lens = 0;        ///< [B] i32
  int64_t logit_rows = 0;      ///< [L] i32: token, or with last_tokens_only its sequence
  int64_t sample_slots = 0;    ///< [L] i32: slot that draws from this row; -1: none
  int64_t target_slots = 0;    ///< [L] i32: slot that asks for the probability of `targets` in this row; -1: none
  int64_t targets = 0;         ///< [L] i32
  struct Group {
    int64_t slots = 0;          ///< [T] i64
    int64_t first_columns = 0;  ///< [B] i32: column of the block table that columns 0, 1, … of `table` belong to
    int64_t table = 0;          ///< [B, table_columns] i32
  };
  std::vector<Group> groups;
  int64_t span_ids = 0;  ///< [T] i32; only with spans
  int64_t bytes = 0;     ///< of the whole block
};

[[nodiscard]] StepLayout step_layout(const StepShape& shape);

/// True where some sequence has several tokens and no logits are wanted but of last tokens.
[[nodiscard]] bool wants_last_tokens_only(const Batch& batch);

/// True where every sequence has one token, none begins (DeviceBatch::older_keys_exist) and nobody asks for a prompt's
/// probabilities: what decode graphs run.
[[nodiscard]] bool is_decode_step(const Step& step);

/// The shape of a step. With `padded_sequences` > 0, that of a decode step with so many rows: as many tokens and logit
/// rows as sequences. Throws Error(kInternal) for a step that does not fit.
[[nodiscard]] StepShape step_shape(const Step& step, const CachePlan& plan, int64_t padded_sequences = 0);

/// Writes all of the block. Padding: token 0 at position 0, a sequence of no keys with one query token, slot -1, logit
/// row 0 that nobody draws from. Throws Error(kInternal) for lists that contradict the batch (two samples of one logit
/// row, a row outside the batch).
void write_step(const Step& step, const CachePlan& plan, const StepShape& shape, const StepLayout& layout,
                std::span<std::byte> block);

/// Padded sizes of decode graphs: 1, 2, 4, then every 8th, and max_num_seqs.
[[nodiscard]] std::vector<int64_t> decode_graph_sizes(int64_t max_num_seqs);
/// The smallest of the ascending `sizes` that holds `num_sequences`; 0 if none does.
[[nodiscard]] int64_t padded_size(std::span<const int64_t> sizes, int64_t num_sequences);

}  // namespace quaver
