// Emulates src/ptx/launch.cuh: kernels run one after the other and registers are for free.
#pragma once

namespace quaver::ptx {

inline void grid_dependency_wait() {}
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
