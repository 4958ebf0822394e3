#include "kv_cache/token_spans.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include "testing/expect_error.h"

namespace quaver {
namespace {

using Spans = std::vector<TokenSpan>;

TEST(TokenSpans, OnlyAscendingDisjointSpansOfThePrompt) {
  for (const Spans& good : std::vector<Spans>{{}, {{0, 1}}, {{0, 10}}, {{0, 4}, {4, 10}}, {{2, 3}, {7, 9}}}) {
    EXPECT_NO_THROW(check_spans(good, 10));
  }
  for (const Spans& bad : std::vector<Spans>{{{-1, 2}},
                                             {{3, 3}},
                                             {{4, 3}},
                                             {{0, 11}},
                                             {{10, 11}},
                                             {{0, 4}, {3, 5}},
                                             {{5, 6}, {1, 2}},
                                             {{1, 2}, {1, 2}}}) {
    EXPECT_THROW(check_spans(bad, 10), Error);
  }
  EXPECT_THROW(check_spans(Spans{{0, 1}}, 0), Error);
}

/// Every list of disjoint spans in `size` tokens.
void all_spans(int64_t from, int64_t size, Spans& spans, const std::function<void(const Spans&)>& use) {
  use(spans);
  for (int64_t first = from; first < size; ++first) {
    for (int64_t last = first + 1; last <= size; ++last) {
      spans.push_back({first, last});
      all_spans(last, size, spans, use);
      spans.pop_back();
    }
  }
}

TEST(TokenSpans, BoundariesAreTheDefinition) {
  Spans spans;
  all_spans(0, 7, spans, [](const Spans& each) {
    for (int64_t end = 0; end <= 8; ++end) {
      int64_t expected = end;
      const auto inside = [&](const TokenSpan& span) { return span.first < expected && expected < span.last; };
      while (std::ranges::any_of(each, inside)) --expected;
      ASSERT_EQ(boundary_outside_spans(each, end), expected) << "end " << end;
    }
  });
}

// Blocks of two tokens of six: the keys of all blocks up to one that does not end inside a span tell apart exactly what
// the keys and values there depend on, the tokens and the spans of them.
TEST(TokenSpans, KeysTellApartWhatPagesDependOn) {
  std::map<std::vector<std::vector<int32_t>>, std::set<std::pair<std::vector<int32_t>, std::vector<int64_t>>>> seen;
  for (int32_t bits = 0; bits < 64; ++bits) {
    std::vector<int32_t> tokens;
    for (int i = 0; i < 6; ++i) tokens.push_back(bits >> i & 1);
    Spans spans;
    all_spans(0, 6, spans, [&](const Spans& each) {
      std::vector<std::vector<int32_t>> keys;
      std::vector<int32_t> scratch;
      for (int64_t first = 0; first < 6; first += 2) {
        const auto key = block_key(tokens, each, first, 2, scratch);
        keys.emplace_back(key.begin(), key.end());
        const int64_t end = first + 2;
        if (boundary_outside_spans(each, end) != end) continue;
        std::vector<int64_t> bounds;
        for (const TokenSpan& span : each) {
          if (span.last <= end) bounds.insert(bounds.end(), {span.first, span.last});
        }
        seen[keys].insert({{tokens.begin(), tokens.begin() + end}, bounds});
      }
    });
  }
  EXPECT_GT(seen.size(), 1000U);
  std::set<std::pair<std::vector<int32_t>, std::vector<int64_t>>> all;
  size_t count = 0;
  for (const auto& [keys, dependencies] : seen) {
    EXPECT_EQ(dependencies.size(), 1U);
    count += all.insert(*dependencies.begin()).second ? 1 : 0;
  }
  EXPECT_EQ(count, seen.size());  // nor are there two keys for one thing
}

TEST(TokenSpans, TextIsItsOwnKey) {
  std::vector<int32_t> tokens(32);
  std::iota(tokens.begin(), tokens.end(), 100);
  std::vector<int32_t> scratch;
  const Spans spans{{16, 20}};
  const auto text = block_key(tokens, spans, 0, 16, scratch);
  EXPECT_EQ(text.data(), tokens.data());
  EXPECT_EQ(text.size(), 16U);
  EXPECT_EQ(block_key(tokens, spans, 16, 16, scratch).size(), 19U);
}

}  // namespace
}  // namespace quaver
