// Query rows in blocks: what one CTA of the prefill kernel works on at a time. Host and device, unit-tested on the CPU.
//
// The rows of a kv head (token * group + head in the group) are cut every block_rows, so that any GQA ratio fills the
// blocks. A block is the same work for every kv head; block and kv head together are an item.
#pragma once

#include <cstdint>

#include "attention/tiles.h"

namespace quaver::schedule {

/// What the row blocks of one cache group have in common.
struct BlockShape {
  int group = 1;         ///< query heads of one kv head
  int block_rows = 128;  ///< query rows of one block
  int kv_tile = 128;     ///< tokens
  tiles::Mask mask{};
  int min_rows = 1;  ///< sequences with fewer rows a kv head belong to another kernel
};

/// One block, or a part of its keys, ready to be worked on. Read in 16-byte words.
struct alignas(16) RowBlock {
  int sequence;
  int first_row;
  int query_begin;  ///< first row of q that is the sequence's
  int query_len;
  int kv_len;
  int first_key;   ///< lowest key that any query token of the sequence sees; table entries left of it are not read
  int tile_begin;  ///< KV tiles that some row of the block sees, absolute; of them this part's
  int tile_end;
  int part;  ///< which part of the block's keys this is …
  int num_parts;
  int first_slot;  ///< … and where the parts of kv head 0 go

  [[nodiscard]] QUAVER_HD constexpr int num_tiles() const { return tile_end - tile_begin; }
  /// Slot of the first part of a kv head; the other parts follow.
  [[nodiscard]] QUAVER_HD constexpr int head_slot(int head) const { return first_slot + head * num_parts; }
};

[[nodiscard]] QUAVER_HD constexpr int num_row_blocks(const BlockShape& shape, int query_len) {
  const int rows = query_len * shape.group;
  return rows < shape.min_rows ? 0 : (rows + shape.block_rows - 1) / shape.block_rows;
}

/// Query tokens of the rows [first_row, first_row + rows) of a sequence.
struct TokenRange {
  int first = 0;
  int last = 0;
};

[[nodiscard]] QUAVER_HD constexpr TokenRange row_tokens(int group, int query_len, int first_row, int rows) {
  const int end = (first_row + rows + group - 1) / group;
  return {.first = tiles::row_token(first_row, group), .last = end < query_len ? end : query_len};
}

/// Keys that query tokens of a sequence see. `span_ends`: [query_len], tiles::visible_keys_in_span()'s span_end of each
/// of its tokens; null where nothing is in a span.
[[nodiscard]] QUAVER_HD constexpr tiles::VisibleKeys token_keys(tiles::Mask mask, int kv_len, int query_len,
                                                                const TokenRange& tokens, const int32_t* span_ends) {
  if (span_ends == nullptr || tokens.first >= tokens.last) {
    return tiles::visible_keys(mask, kv_len, query_len, tokens.first, tokens.last);
  }
  return tiles::visible_keys_in_spans(mask, kv_len, query_len, tokens.first, tokens.last, span_ends[tokens.first],
                                      span_ends[tokens.last - 1]);
}

/// `span_ends`: as token_keys() has them.
[[nodiscard]] QUAVER_HD constexpr RowBlock row_block(const BlockShape& shape, int sequence, int query_begin,
                                                     int query_len, int kv_len, int block,
                                                     const int32_t* span_ends = nullptr) {
  const int first_row = block * shape.block_rows;
  const TokenRange tokens = row_tokens(shape.group, query_len, first_row, shape.block_rows);
  const tiles::VisibleKeys keys = token_keys(shape.mask, kv_len, query_len, tokens, span_ends);
  const tiles::TileRange range = tiles::tile_range(keys, shape.kv_tile);
  const tiles::VisibleKeys all = tiles::visible_keys(shape.mask, kv_len, query_len, 0, query_len);
  return {.sequence = sequence,
          .first_row = first_row,
          .query_begin = query_begin,
          .query_len = query_len,
          .kv_len = kv_len,
          .first_key = static_cast<int>(all.any.first),
          .tile_begin = static_cast<int>(range.first),
          .tile_end = static_cast<int>(range.last),
          .part = 0,
          .num_parts = 1,
          .first_slot = 0};
}

/// Part `part` of a whole block.
[[nodiscard]] QUAVER_HD constexpr RowBlock block_part(const RowBlock& whole, int part, int num_parts, int first_slot) {
  RowBlock block = whole;
  block.tile_begin = whole.tile_begin + static_cast<int>(tiles::even_cut(whole.num_tiles(), num_parts, part));
  block.tile_end = whole.tile_begin + static_cast<int>(tiles::even_cut(whole.num_tiles(), num_parts, part + 1));
  block.part = part;
  block.num_parts = num_parts;
  block.first_slot = first_slot;
  return block;
}

}  // namespace quaver::schedule
