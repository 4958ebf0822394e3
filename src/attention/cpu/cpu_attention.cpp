#include "attention/cpu/cpu_attention.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "attention/cpu/row_block.h"

namespace quaver {
namespace {

// Query rows of a block: the dequantisation of a tile costs about 5 % of the products of 96 rows, and 96 rows of
// Q, O and one tile fit the 512 KB L2 of a core at D = 256.
constexpr int64_t kRowsPerBlock = 96;

// A piece of an item: its fixed splits [split_first, split_last).
struct Piece {
  size_t item = 0;
  int64_t split_first = 0;
  int64_t split_last = 0;
  bool whole = true;  ///< the item has no other piece
};

std::vector<RowBlockItem> make_items(const CpuCall& call) {
  std::vector<RowBlockItem> items;
  const int64_t block = std::max<int64_t>(1, kRowsPerBlock / call.group);
  for (int64_t b = 0; b < call.args.seq_lens.dim(0); ++b) {
    const int64_t tokens = call.query_len(b);
    // The last rows of a causal chunk see the most keys: longest first.
    for (int64_t first = (tokens - 1) / block * block; first >= 0 && tokens > 0; first -= block) {
      RowBlockItem item{.sequence = b, .token_first = first, .token_last = std::min(first + block, tokens)};
      for (int64_t token = item.token_first; token < item.token_last; ++token) {
        const tiles::KeyRange keys = call.visible(b, token);
        if (keys.empty()) continue;
        item.keys = item.keys.empty()
                        ? keys
                        : tiles::KeyRange{std::min(item.keys.first, keys.first), std::max(item.keys.last, keys.last)};
      }
      for (item.head = 0; item.head < call.problem.kv.num_kv_heads; ++item.head) items.push_back(item);
    }
  }
  return items;
}

// Few items are cut at every split, so that all workers have some; folding the splits in order gives the same bits.
std::vector<Piece> make_pieces(const std::vector<RowBlockItem>& items, size_t workers) {
  std::vector<Piece> pieces;
  const bool cut = items.size() < 4 * workers;
  for (size_t i = 0; i < items.size(); ++i) {
    const tiles::KeyRange& keys = items[i].keys;
    const int64_t first = keys.first / kCpuSplitTokens;
    const int64_t last = keys.empty() ? first : (keys.last + kCpuSplitTokens - 1) / kCpuSplitTokens;
    if (!cut || last - first <= 1) {
      pieces.push_back({.item = i, .split_first = first, .split_last = last, .whole = true});
    } else {
      for (int64_t split = first; split < last; ++split) pieces.push_back({i, split, split + 1, false});
    }
  }
  return pieces;
}

}  // namespace

void attention_cpu(const AttentionProblem& problem, const AttentionArgs& args) {
  const CpuCall call(problem, args);
  const auto max_workers = static_cast<size_t>(omp_get_max_threads());
  const std::vector<RowBlockItem> items = make_items(call);
  const std::vector<Piece> pieces = make_pieces(items, max_workers);
  int64_t max_rows = 0;
  for (const RowBlockItem& item : items) max_rows = std::max(max_rows, call.rows(item));
  std::vector<RowState> partial(pieces.size());  // results of the pieces of cut items
  for (size_t p = 0; p < pieces.size(); ++p) {
    if (!pieces[p].whole) partial[p].reset(call.rows(items[pieces[p].item]), call.padded_v);
  }
  std::vector<RowBlock> workers;
  for (size_t w = 0; w < std::min(max_workers, pieces.size()); ++w) workers.emplace_back(call, max_rows);

  std::atomic<size_t> ticket{0};
#pragma omp parallel for schedule(static, 1) if (workers.size() > 1)
  for (RowBlock& worker : workers) {
    for (size_t p = ticket++; p < pieces.size(); p = ticket++) {
      const RowBlockItem& item = items[pieces[p].item];
      worker.begin(item);
      RowState& total = pieces[p].whole ? worker.total() : partial[p];
      worker.add_splits(pieces[p].split_first, pieces[p].split_last, total);
      if (pieces[p].whole) finish(call, item, total);
    }
  }
  for (size_t p = 0; p < pieces.size();) {
    const size_t first = p++;
    if (pieces[first].whole) continue;
    const RowBlockItem& item = items[pieces[first].item];
    for (; p < pieces.size() && pieces[p].item == pieces[first].item; ++p) {
      partial[first].fold(partial[p], call.rows(item), call.padded_v);
    }
    finish(call, item, partial[first]);
  }
}

}  // namespace quaver
