// Prefetch into L2. One instruction per function.
#pragma once

namespace quaver::ptx {

/// PTX ISA "prefetch.global.L2": brings the line of `address` towards L2; holds no register and waits for nothing.
__device__ __forceinline__ void prefetch_l2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

}  // namespace quaver::ptx
