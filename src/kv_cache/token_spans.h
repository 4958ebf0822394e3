// Image spans of a prompt: their tokens see each other in both directions, so keys and values of one depend on all.
// Nothing may end inside a span: no chunk of a prompt, no cached prefix.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "quaver/token_span.h"

namespace quaver {

/// Throws Error(kInvalidArgument) unless the spans are not empty, ascending, disjoint and inside `num_tokens` tokens.
void check_spans(std::span<const TokenSpan> spans, int64_t num_tokens);

/// The last token boundary <= `end` that is not inside a span.
[[nodiscard]] int64_t boundary_outside_spans(std::span<const TokenSpan> spans, int64_t end);

/// What the keys and values of the block of tokens [first, first + block_tokens) depend on beside the tokens in front:
/// its own tokens and, where spans begin in it, the last one's tokens beyond it and where they lie. Two blocks with the
/// same predecessors are the same if and only if their keys are. `scratch` holds a key that is not just the tokens.
[[nodiscard]] std::span<const int32_t> block_key(std::span<const int32_t> tokens, std::span<const TokenSpan> spans,
                                                 int64_t first, int64_t block_tokens, std::vector<int32_t>& scratch);

}  // namespace quaver
