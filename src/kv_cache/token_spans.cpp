#include "kv_cache/token_spans.h"

#include <algorithm>

#include "core/check.h"

namespace quaver {
namespace {

/// The first span that ends behind `token`.
auto first_behind(std::span<const TokenSpan> spans, int64_t token) {
  return std::ranges::upper_bound(spans, token, {}, &TokenSpan::last);
}

}  // namespace

void check_spans(std::span<const TokenSpan> spans, int64_t num_tokens) {
  int64_t end = 0;
  for (const TokenSpan& span : spans) {
    check(span.first >= end && span.last > span.first && span.last <= num_tokens, "span [", span.first, ", ", span.last,
          "): expected at least one token of the ", num_tokens, " of the prompt, from ", end, " on");
    end = span.last;
  }
}

int64_t boundary_outside_spans(std::span<const TokenSpan> spans, int64_t end) {
  const auto span = first_behind(spans, end);
  return span != spans.end() && span->first < end ? span->first : end;
}

std::span<const int32_t> block_key(std::span<const int32_t> tokens, std::span<const TokenSpan> spans, int64_t first,
                                   int64_t block_tokens, std::vector<int32_t>& scratch) {
  const auto block = tokens.subspan(static_cast<size_t>(first), static_cast<size_t>(block_tokens));
  const int64_t end = first + block_tokens;
  const auto begin = std::ranges::lower_bound(spans, first, {}, &TokenSpan::first);
  auto last = begin;
  while (last != spans.end() && last->first < end) ++last;
  if (begin == last) return block;
  const int64_t key_end = std::max(end, std::prev(last)->last);
  // Read from its end a key says what it is made of: the number of spans, the spans, the tokens.
  scratch.assign(tokens.begin() + first, tokens.begin() + key_end);
  for (auto span = begin; span != last; ++span) {
    scratch.push_back(static_cast<int32_t>(span->first - first));
    scratch.push_back(static_cast<int32_t>(span->last - first));
  }
  scratch.push_back(static_cast<int32_t>(last - begin));
  return scratch;
}

}  // namespace quaver
