// A stack of its own for every thread of a kernel, and the switch between stacks.
#pragma once

#include <cstddef>

namespace quaver::simt {

struct Fiber {
  void* stack_pointer = nullptr;
  std::byte* stack = nullptr;
  void* sanitizer_stack = nullptr;  ///< AddressSanitizer's own stack of the fiber
};

inline constexpr size_t kStackBytes = size_t{256} << 10;  ///< of addresses; memory is what a kernel touches

/// Makes the next resume() of the fiber call `entry`, which must not return. `stack`: kStackBytes.
void prepare(Fiber& fiber, std::byte* stack, void (*entry)());

/// From the scheduler into the fiber; returns when the fiber calls suspend().
void resume(Fiber& fiber);

/// From the running fiber back to the scheduler of its OS thread. `last`: the fiber is never resumed.
void suspend(Fiber& fiber, bool last = false);

/// First thing on a fiber's stack.
void entered(Fiber& fiber);

/// A stack with a page below it that no one may touch. Stacks are kept for the next fibers.
[[nodiscard]] std::byte* take_stack();
/// `ended`: the fiber has called suspend() for the last time, else it stands somewhere in a kernel.
void give_back_stack(std::byte* stack, bool ended);

}  // namespace quaver::simt
