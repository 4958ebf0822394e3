// check() for tensors.
#pragma once

#include "core/check.h"
#include "quaver/tensor.h"

namespace quaver {

/// Throws Error(kInvalidArgument) "<name> <view>: expected <expected>" unless `ok`; formats the view only then.
template <class... Parts>
void check_view(bool ok, const char* name, const ConstTensorView& view, const Parts&... expected) {
  if (!ok) [[unlikely]]
    fail(ErrorKind::kInvalidArgument, name, " ", to_string(view), ": expected ", expected...);
}

}  // namespace quaver
