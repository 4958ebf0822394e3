#include "simt/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <vector>

#include "core/check.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// System V x86-64: a call preserves rbx, rbp and r12 … r15.
asm(R"(
  .text
  .type quaver_switch_stack, @function
quaver_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size quaver_switch_stack, . - quaver_switch_stack
)");
extern "C" void quaver_switch_stack(void** save, void* to);

namespace quaver::simt {
namespace {

/// The stack of the OS thread while a fiber runs.
struct Scheduler {
  void* stack_pointer = nullptr;
  const void* stack = nullptr;
  size_t bytes = 0;
  void* sanitizer_stack = nullptr;
};
thread_local Scheduler scheduler;

std::vector<std::byte*> free_stacks;

}  // namespace

void prepare(Fiber& fiber, std::byte* stack, void (*entry)()) {
  auto* top = reinterpret_cast<uintptr_t*>(stack + kStackBytes);
  *--top = 0;  // the return address of `entry`, 8 bytes off a multiple of 16 as a call leaves it
  *--top = reinterpret_cast<uintptr_t>(entry);
  for (int i = 0; i < 6; ++i) *--top = 0;
  fiber = {.stack_pointer = top, .stack = stack};
}

void resume(Fiber& fiber) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&scheduler.sanitizer_stack, fiber.stack, kStackBytes);
#endif
  quaver_switch_stack(&scheduler.stack_pointer, fiber.stack_pointer);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(scheduler.sanitizer_stack, nullptr, nullptr);
#endif
}

void entered([[maybe_unused]] Fiber& fiber) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fiber.sanitizer_stack, &scheduler.stack, &scheduler.bytes);
#endif
}

void suspend(Fiber& fiber, [[maybe_unused]] bool last) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(last ? nullptr : &fiber.sanitizer_stack, scheduler.stack, scheduler.bytes);
#endif
  quaver_switch_stack(&fiber.stack_pointer, scheduler.stack_pointer);
  entered(fiber);
}

std::byte* take_stack() {
  if (!free_stacks.empty()) {
    std::byte* stack = free_stacks.back();
    free_stacks.pop_back();
    return stack;
  }
  constexpr size_t kGuard = 4096;
  void* memory = mmap(nullptr, kGuard + kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  check(memory != MAP_FAILED && mprotect(memory, kGuard, PROT_NONE) == 0, "stack of ", kStackBytes,
        " bytes: no memory");
  return static_cast<std::byte*>(memory) + kGuard;
}

void give_back_stack(std::byte* stack, [[maybe_unused]] bool ended) {
#if defined(__SANITIZE_ADDRESS__)
  const size_t used = ended ? 4096 : kStackBytes;  // frames that never return leave their marks
  __asan_unpoison_memory_region(stack + kStackBytes - used, used);
#endif
  free_stacks.push_back(stack);
}

}  // namespace quaver::simt
