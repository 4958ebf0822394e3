// tiles.h against brute force: every mask, length and block at small sizes.
#include "attention/tiles.h"

#include <gtest/gtest.h>

#include <vector>

namespace quaver::tiles {
namespace {

// The definition, one key at a time.
bool sees(Mask mask, int64_t kv_len, int64_t q_len, int64_t token, int64_t key) {
  const int64_t position = kv_len - q_len + token;
  if (key < 0 || key >= kv_len) return false;
  if (mask.causal && key > position) return false;
  if (mask.window > 0 && (key <= position - mask.window || key >= position + mask.window)) return false;
  return true;
}

constexpr int kWindows[] = {0, 1, 2, 3, 5, 8, 20};

TEST(Tiles, VisibleKeysOfOneTokenAreTheDefinition) {
  for (const bool causal : {true, false}) {
    for (const int window : kWindows) {
      for (int64_t kv_len = 0; kv_len <= 14; ++kv_len) {
        for (int64_t q_len = 1; q_len <= 17; ++q_len) {
          for (int64_t token = 0; token < q_len; ++token) {
            const Mask mask{causal, window};
            const KeyRange range = visible_keys(mask, kv_len, q_len, token);
            ASSERT_TRUE(range.first < range.last || range == KeyRange{});
            for (int64_t key = -2; key < kv_len + 3; ++key) {
              ASSERT_EQ(range.first <= key && key < range.last, sees(mask, kv_len, q_len, token, key))
                  << "causal " << causal << " window " << window << " kv " << kv_len << " q " << q_len << " token "
                  << token << " key " << key;
            }
          }
        }
      }
    }
  }
}

// Every mask, length, span and token: what the token sees by itself, and the later tokens of its span.
TEST(Tiles, VisibleKeysInASpanAreTheDefinition) {
  for (const int window : kWindows) {
    for (int64_t kv_len = 0; kv_len <= 12; ++kv_len) {
      for (int64_t q_len = 1; q_len <= 14; ++q_len) {
        for (int64_t token = 0; token < q_len; ++token) {
          for (int64_t span_end = token + 1; span_end <= q_len; ++span_end) {
            const Mask mask{.causal = true, .window = window};
            const KeyRange range = visible_keys_in_span(mask, kv_len, q_len, token, span_end);
            ASSERT_TRUE(span_end > token + 1 || range == visible_keys(mask, kv_len, q_len, token));
            ASSERT_TRUE(range.first < range.last || range == KeyRange{});
            for (int64_t key = -2; key < kv_len + 3; ++key) {
              const int64_t key_token = key - (kv_len - q_len);
              const bool later = token < key_token && key_token < span_end && key >= 0 && key < kv_len;
              ASSERT_EQ(range.first <= key && key < range.last, sees(mask, kv_len, q_len, token, key) || later)
                  << "window " << window << " kv " << kv_len << " q " << q_len << " token " << token << " span to "
                  << span_end << " key " << key;
            }
          }
        }
      }
    }
  }
}

TEST(Tiles, ASpanIsARunOfEqualIds) {
  EXPECT_TRUE(span_goes_on(0, 0));
  EXPECT_TRUE(span_goes_on(7, 7));
  EXPECT_FALSE(span_goes_on(0, 1));
  EXPECT_FALSE(span_goes_on(-1, -1));
  EXPECT_FALSE(span_goes_on(-2, -2));
  EXPECT_FALSE(span_goes_on(0, -1));
}

// A tile is needed iff some row sees one of its keys, and unmasked iff every row sees all of them.
void expect_tiles(Mask mask, int64_t kv_len, int64_t q_len, int64_t begin, int64_t end, int tile) {
  const TileRange range = tile_range(visible_keys(mask, kv_len, q_len, begin, end), tile);
  ASSERT_LE(range.first, range.full_first);
  ASSERT_LE(range.full_first, range.full_last);
  ASSERT_LE(range.full_last, range.last);
  ASSERT_EQ(range.masked_left() + (range.full_last - range.full_first) + range.masked_right(), range.count());
  for (int64_t t = 0; t * tile < kv_len + 2 * tile; ++t) {
    bool any = false;
    bool all = true;
    for (int64_t token = begin; token < end; ++token) {
      for (int64_t key = t * tile; key < (t + 1) * tile; ++key) {
        const bool seen = sees(mask, kv_len, q_len, token, key);
        any = any || seen;
        all = all && seen;
      }
    }
    const bool in_range = range.first <= t && t < range.last;
    ASSERT_TRUE(!any || in_range) << "kv " << kv_len << " q " << q_len << " tile " << t;
    ASSERT_EQ(in_range && range.full_first <= t && t < range.full_last, all && begin < end)
        << "causal " << mask.causal << " window " << mask.window << " kv " << kv_len << " q " << q_len << " [" << begin
        << ", " << end << ") tile " << tile << " " << t;
    const bool at_an_end = range.count() > 0 && (t == range.first || t == range.last - 1);
    ASSERT_TRUE(any || !at_an_end) << "an end tile that no row sees";
  }
}

TEST(Tiles, TileRangesAreTheDefinition) {
  for (const bool causal : {true, false}) {
    for (const int window : kWindows) {
      for (int64_t kv_len = 0; kv_len <= 13; ++kv_len) {
        for (int64_t q_len = 0; q_len <= 15; ++q_len) {
          for (int64_t begin = 0; begin <= q_len; ++begin) {
            for (int64_t end = begin; end <= q_len; ++end) {
              for (const int tile : {1, 2, 4}) expect_tiles({causal, window}, kv_len, q_len, begin, end, tile);
            }
          }
        }
      }
    }
  }
}

TEST(Tiles, LengthsBeyond32Bits) {
  const int64_t kv_len = int64_t{5} << 32;
  EXPECT_EQ(visible_keys({.causal = true, .window = 1024}, kv_len, 1, 0), (KeyRange{kv_len - 1024, kv_len}));
  const TileRange range = tile_range(visible_keys({.causal = true, .window = 1024}, kv_len, 2, 0, 2), 64);
  EXPECT_EQ(range, (TileRange{kv_len / 64 - 17, kv_len / 64 - 16, kv_len / 64 - 1, kv_len / 64}));
}

// B16: the Gemma window. Position p sees p - 1023 … p; p - 1024 is outside.
TEST(Tiles, WindowCountsTheTokenItself) {
  EXPECT_EQ(visible_keys({.causal = true, .window = 1024}, 2048, 8, 7), (KeyRange{1024, 2048}));
  EXPECT_EQ(visible_keys({.causal = true, .window = 1024}, 2048, 8, 0), (KeyRange{1017, 2041}));
}

// B14: more queries than keys; bottom-right alignment leaves the first rows without a key.
TEST(Tiles, MoreQueriesThanKeys) {
  for (int64_t token = 0; token < 3; ++token) EXPECT_TRUE(visible_keys({}, 2, 5, token).empty());
  EXPECT_EQ(visible_keys({}, 2, 5, 3), (KeyRange{0, 1}));
  EXPECT_EQ(visible_keys({}, 2, 5, 4), (KeyRange{0, 2}));
  EXPECT_EQ(visible_keys({}, 1, 130, 0, 129).any, KeyRange{});
}

TEST(Tiles, EveryTileDividesTheFixedSplitAndSixteen) {
  for (const int head_dim : kKernelHeadDims) {
    for (const auto family : {KernelFamily::kDecode, KernelFamily::kPrefill}) {
      const int tile = kv_tile(family, head_dim);
      ASSERT_GT(tile, 0);
      EXPECT_EQ(kFixedSplitTokens % tile, 0);
      EXPECT_EQ(tile % 16, 0);
    }
  }
  EXPECT_EQ(kv_tile(KernelFamily::kDecode, 128), 128);
  EXPECT_EQ(kv_tile(KernelFamily::kDecode, 192), 64);
  EXPECT_EQ(kv_tile(KernelFamily::kPrefill, 256), 128);
  for (const int head_dim : {0, 16, 72, 80, 120, 136, 320, 1024}) {
    EXPECT_EQ(kv_tile(KernelFamily::kDecode, head_dim), 0);
    EXPECT_EQ(kv_tile(KernelFamily::kPrefill, head_dim), 0);
  }
}

TEST(Tiles, FixedSplitsCoverOnceAndCutAtAbsoluteMultiples) {
  for (const int tile : {64, 128}) {
    const int64_t tiles = kFixedSplitTokens / tile;
    for (int64_t first = 0; first <= 2 * tiles; first += 7) {
      for (int64_t last = first; last <= 4 * tiles; last += 5) {
        int64_t next = first;
        const int64_t count = num_fixed_splits(first, last, tile);
        for (int64_t i = 0; i < count; ++i) {
          const TileSpan span = fixed_split(first, last, tile, i);
          ASSERT_EQ(span.first, next);
          ASSERT_LT(span.first, span.last);
          ASSERT_EQ(span.first / tiles, (span.last - 1) / tiles);  // inside one 4,096-token cell
          next = span.last;
        }
        ASSERT_EQ(next, last);
      }
    }
  }
}

TEST(Tiles, EvenCutsCoverOnceAndOwnersAreTheInverse) {
  for (int64_t units = 0; units <= 40; ++units) {
    for (int64_t workers = 1; workers <= 45; ++workers) {
      ASSERT_EQ(even_cut(units, workers, 0), 0);
      ASSERT_EQ(even_cut(units, workers, workers), units);
      for (int64_t worker = 0; worker < workers; ++worker) {
        const int64_t size = even_cut(units, workers, worker + 1) - even_cut(units, workers, worker);
        ASSERT_TRUE(size == units / workers || size == units / workers + 1);
        for (int64_t unit = even_cut(units, workers, worker); unit < even_cut(units, workers, worker + 1); ++unit) {
          ASSERT_EQ(even_cut_owner(units, workers, unit), worker);
        }
      }
    }
  }
}

TEST(Tiles, RowsMapToTokenAndHead) {
  for (int group = 1; group <= 16; ++group) {
    for (int row = 0; row < 3 * group + 2; ++row) {
      EXPECT_EQ(row_index(row_token(row, group), row_head(row, group), group), row);
      EXPECT_LT(row_head(row, group), group);
    }
  }
}

// The header is usable in constant expressions, as the kernels' traits need it.
static_assert(kv_tile(KernelFamily::kDecode, 256) == 64);
static_assert(tile_range(visible_keys(Mask{}, 100, 1, 0, 1), 64) == TileRange{0, 0, 1, 2});

}  // namespace
}  // namespace quaver::tiles
