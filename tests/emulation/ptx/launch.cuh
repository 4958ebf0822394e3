// Emulates src/ptx/launch.cuh: kernels run one after the other (but see simt/early_start.h) and registers are for free.
#pragma once

#include "simt/thread.h"

namespace quaver::ptx {

inline void grid_dependency_wait() {
  simt::wait_for_launches_in_front();
}
inline void launch_dependents() {}
template <int kRegisters>
inline void increase_registers() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
}
template <int kRegisters>
inline void decrease_registers() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
}

}  // namespace quaver::ptx
