// Numbers on the command lines of the measuring programs.
#pragma once

#include <charconv>
#include <string_view>
#include <system_error>

#include "core/check.h"

namespace quaver::bench {

/// Throws Error(kInvalidArgument) naming the argument for what is no such integer, or one below `least`.
template <class Integer>
Integer integer_argument(std::string_view name, std::string_view text, Integer least) {
  Integer value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  check(error == std::errc{} && end == text.data() + text.size() && value >= least, name, " ", text,
        ": expected an integer from ", least, " on");
  return value;
}

}  // namespace quaver::bench
