// Checks that throw quaver::Error with the offending values in the message. No macro: arguments are only
// formatted when the check fails.
#pragma once

#include "core/concat.h"
#include "quaver/error.h"

namespace quaver {

template <class... Parts>
[[noreturn]] void fail(ErrorKind kind, const Parts&... parts) {
  throw Error(kind, concat(parts...));
}

/// Throws Error(kind) unless `ok`. Write messages as "<name> <value>: expected <what>".
template <class... Parts>
void check_as(ErrorKind kind, bool ok, const Parts&... parts) {
  if (!ok) [[unlikely]]
    fail(kind, parts...);
}

/// Throws Error(kInvalidArgument) unless `ok`.
template <class... Parts>
void check(bool ok, const Parts&... parts) {
  if (!ok) [[unlikely]]
    fail(ErrorKind::kInvalidArgument, parts...);
}

}  // namespace quaver
