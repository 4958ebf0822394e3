// A loop whose index is a compile-time constant: static_for<3>([](auto i) { f<i.value>(); }).
#pragma once

#include <utility>

#include "core/host_device.h"

namespace quaver {

template <int kCount, class Action>
QUAVER_HD constexpr void static_for(Action&& action) {
  [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) {
    (action(std::integral_constant<int, kIndex>{}), ...);
  }(std::make_integer_sequence<int, kCount>{});
}

}  // namespace quaver
