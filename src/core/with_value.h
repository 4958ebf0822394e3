// A run-time value as a compile-time constant: with_value<64, 128>(x, [](auto constant) { f<constant.value>(); }).
#pragma once

#include <type_traits>

#include "core/check.h"

namespace quaver {

/// Calls `action` with the integral_constant that equals `value`. Throws Error(kInternal) when none does.
template <int... kValues, class Action>
void with_value(int value, Action&& action) {
  const bool found = ((value == kValues ? (action(std::integral_constant<int, kValues>{}), true) : false) || ...);
  check_as(ErrorKind::kInternal, found, "value ", value, ": expected one that a kernel was compiled for");
}

}  // namespace quaver
