// The arithmetic of one block of query rows of one (sequence, kv head): queries, running softmax and scratch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/tiles.h"
#include "quaver/attention.h"

namespace quaver {

/// A block of query tokens [token_first, token_last) of one sequence, all heads of one GQA group.
struct RowBlockItem {
  int64_t sequence = 0;
  int head = 0;  ///< kv head
  int64_t token_first = 0;
  int64_t token_last = 0;
  tiles::KeyRange keys{};  ///< keys that some row sees
};

/// What the items of one call share.
struct CpuCall {
  const AttentionProblem& problem;
  const AttentionArgs& args;
  int group = 1;
  int64_t padded_v = 0;             ///< Dv rounded up to whole panels
  std::vector<int64_t> span_end{};  ///< [T]: one past the last token of a token's image span; empty without spans

  CpuCall(const AttentionProblem& the_problem, const AttentionArgs& the_args);
  [[nodiscard]] int64_t query_first(int64_t sequence) const;
  [[nodiscard]] int64_t query_len(int64_t sequence) const;
  [[nodiscard]] int64_t kv_len(int64_t sequence) const;
  /// Keys that a token sees; with spans too they are one range.
  [[nodiscard]] tiles::KeyRange visible(int64_t sequence, int64_t token) const;
  [[nodiscard]] int64_t rows(const RowBlockItem& item) const { return (item.token_last - item.token_first) * group; }
};

/// Softmax state of a block of rows: O is not normalised and has the weights 2^(S - maximum).
struct RowState {
  std::vector<float> o;        ///< [rows, padded_v]
  std::vector<float> sum;      ///< [rows]
  std::vector<float> maximum;  ///< [rows], log2 units, integer

  void reset(int64_t rows, int64_t width);
  /// Adds the keys of `other`; both scale factors are powers of two, so only the additions round.
  void fold(const RowState& other, int64_t rows, int64_t width);
};

/// Sinks, normalisation, output and LSE of a finished item.
void finish(const CpuCall& call, const RowBlockItem& item, RowState& total);

/// One per worker; its buffers are reused from item to item.
class RowBlock {
 public:
  RowBlock(const CpuCall& call, int64_t max_rows);

  /// Loads the queries of `item` and empties total().
  void begin(const RowBlockItem& item);
  /// Adds the keys of the fixed splits [split_first, split_last) to `total`.
  void add_splits(int64_t split_first, int64_t split_last, RowState& total);
  [[nodiscard]] RowState& total() { return total_; }

 private:
  void load_queries();
  void load_tile(int64_t tile_key, int first_panel, int last_panel);
  void softmax_row(int64_t row, int64_t tile_key, int first_panel, int last_panel);
  void add_tile(int64_t tile_key);

  const CpuCall& call_;
  RowBlockItem item_{};
  int64_t rows_ = 0;
  std::vector<float> q_;                // [rows, Dk], scaled
  std::vector<float> k_;                // [kCpuTile / 16, Dk, 16]
  std::vector<float> v_;                // [padded_v / 16, kCpuTile, 16]
  std::vector<float> s_;                // [rows, kCpuTile]: logits, then weights
  std::vector<float> rescale_;          // [rows]
  std::vector<tiles::KeyRange> range_;  // [rows]: visible keys
  RowState split_;
  RowState total_;
};

}  // namespace quaver
