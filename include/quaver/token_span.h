// A run of prompt tokens that belong together.
#pragma once

#include <cstdint>

namespace quaver {

/// Tokens [first, last) of a prompt.
struct TokenSpan {
  int64_t first = 0;
  int64_t last = 0;
  friend bool operator==(const TokenSpan&, const TokenSpan&) = default;
};

}  // namespace quaver
