// Row blocks: all rows of a sequence lie in one block each, and a block's tiles are those that its rows see.
#include "attention/schedule/row_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "attention/schedule/sequence_work.h"

namespace quaver::schedule {
namespace {

TEST(RowBlocks, CoverAllRowsAndTheTilesTheySee) {
  for (const int group : {1, 2, 3, 7, 16}) {
    for (const int block_rows : {128, 192}) {
      for (const tiles::Mask mask : {tiles::Mask{}, tiles::Mask{.causal = true, .window = 100},
                                     tiles::Mask{.causal = false}, tiles::Mask{.causal = false, .window = 33}}) {
        for (const int query_len : {0, 1, 64, 65, 129, 300}) {
          for (const int kv_len : {0, 1, 128, 129, 300, 1000}) {
            const BlockShape shape{.group = group, .block_rows = block_rows, .kv_tile = 128, .mask = mask};
            const int rows = query_len * group;
            const int blocks = num_row_blocks(shape, query_len);
            ASSERT_EQ(blocks, (rows + block_rows - 1) / block_rows);
            for (int b = 0; b < blocks; ++b) {
              const RowBlock block = row_block(shape, 5, 77, query_len, kv_len, b);
              ASSERT_EQ(block.sequence, 5);
              ASSERT_EQ(block.first_row, b * block_rows);
              ASSERT_EQ(block.query_begin, 77);
              ASSERT_EQ(block.query_len, query_len);
              ASSERT_EQ(block.kv_len, kv_len);
              int64_t first = kv_len;
              int64_t last = 0;
              for (int row = block.first_row; row < std::min(rows, block.first_row + block_rows); ++row) {
                const tiles::KeyRange keys = tiles::visible_keys(mask, kv_len, query_len, row / group);
                if (keys.empty()) continue;
                first = std::min(first, keys.first);
                last = std::max(last, keys.last);
              }
              if (first >= last) {
                ASSERT_EQ(block.tile_begin, block.tile_end);
                continue;
              }
              ASSERT_EQ(block.tile_begin, first / 128);
              ASSERT_EQ(block.tile_end, (last + 127) / 128);
              ASSERT_LE(block.first_key, first);
            }
          }
        }
      }
    }
  }
}

// With image spans: a block's tiles reach to the end of the span of its last token, and those that need no mask to that
// of its first one.
TEST(RowBlocks, SpansReachBeyondTheirTokens) {
  constexpr int kQueryLen = 300;
  for (const int span : {1, 7, 64, 150, 400}) {
    std::vector<int32_t> ends;  // text and spans in turn
    while (std::ssize(ends) < kQueryLen) {
      const auto end = static_cast<int32_t>(std::ssize(ends)) + span;
      for (int t = 0; t < span; ++t) ends.push_back(std::min(end, kQueryLen));
      for (int t = 0; t < 5; ++t) ends.push_back(static_cast<int32_t>(std::ssize(ends)) + 1);
    }
    for (const int window : {0, 100}) {
      for (const int kv_len : {200, 300, 1000}) {
        const BlockShape shape{.group = 2, .mask = {.causal = true, .window = window}};
        for (int b = 0; b < num_row_blocks(shape, kQueryLen); ++b) {
          const RowBlock block = row_block(shape, 0, 0, kQueryLen, kv_len, b, ends.data());
          const TokenRange tokens = row_tokens(2, kQueryLen, block.first_row, shape.block_rows);
          const tiles::VisibleKeys keys = token_keys(shape.mask, kv_len, kQueryLen, tokens, ends.data());
          tiles::KeyRange any{.first = kv_len, .last = 0};
          tiles::KeyRange all{.first = 0, .last = kv_len};
          for (int token = tokens.first; token < tokens.last; ++token) {
            const tiles::KeyRange own =
                tiles::visible_keys_in_span(shape.mask, kv_len, kQueryLen, token, ends[static_cast<size_t>(token)]);
            if (!own.empty()) any = {.first = std::min(any.first, own.first), .last = std::max(any.last, own.last)};
            all = {.first = std::max(all.first, own.first), .last = std::min(all.last, own.last)};
          }
          ASSERT_EQ(keys.any, any.empty() ? tiles::KeyRange{} : any) << "span " << span << " block " << b;
          ASSERT_EQ(keys.all, all.empty() ? tiles::KeyRange{} : all) << "span " << span << " block " << b;
          ASSERT_EQ(block.tile_begin, keys.any.first / 128);
          ASSERT_EQ(block.tile_end, (keys.any.last + 127) / 128);
        }
      }
    }
  }
}

TEST(RowBlocks, SequencesOfAnotherKernelHaveNone) {
  const BlockShape shape{.group = 4, .block_rows = 128, .kv_tile = 128, .min_rows = 33};
  EXPECT_EQ(num_row_blocks(shape, 8), 0);
  EXPECT_EQ(num_row_blocks(shape, 9), 1);
  EXPECT_EQ(num_row_blocks(shape, 33), 2);
}

// A mixed step: every sequence with rows belongs to exactly one of the two work lists.
TEST(RowBlocks, EverySequenceHasOneKernel) {
  for (const int group : {1, 3, 4, 16}) {
    const BlockShape prefill{.group = group, .min_rows = tiles::kMaxDecodeRows + 1};
    const ScheduleShape decode{.group = group};
    for (int query_len = 1; query_len <= 40; ++query_len) {
      const SequenceWork work = sequence_work(decode, decode.kv_tile, 100, 100 + query_len, 500);
      EXPECT_EQ(work.query_len > 0, num_row_blocks(prefill, query_len) == 0) << group << " x " << query_len;
    }
  }
}

TEST(RowBlocks, TokensOfRows) {
  const TokenRange whole = row_tokens(3, 100, 0, 64);
  EXPECT_EQ(whole.first, 0);
  EXPECT_EQ(whole.last, 22);  // row 63 is token 21
  const TokenRange cut = row_tokens(3, 22, 64, 64);
  EXPECT_EQ(cut.first, 21);
  EXPECT_EQ(cut.last, 22);
  const TokenRange none = row_tokens(2, 10, 64, 64);  // a warpgroup without rows
  EXPECT_GE(none.first, none.last);
}

}  // namespace
}  // namespace quaver::schedule
