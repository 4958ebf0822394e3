// Copies of 16 bytes from global to shared memory that a thread makes for itself. One instruction per function.
#pragma once

#include <cstdint>

namespace quaver::ptx {

/// PTX ISA "cp.async.cg": past L1; 16 zeros, and nothing is read, if not `exists`. Both addresses at multiples of 16.
__device__ __forceinline__ void copy_async(void* shared, const void* global, bool exists) {
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
      "l"(global), "r"(exists ? 16 : 0)
      : "memory");
}

/// PTX ISA "cp.async.wait_all": the thread's own copies have landed, and it may read them.
__device__ __forceinline__ void wait_async_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

}  // namespace quaver::ptx
