// One-dimensional bulk copies from global to shared memory. One instruction per function.
#pragma once

#include <cstdint>

namespace quaver::ptx {

/// PTX ISA "createpolicy.fractional": L2 lines that are read once and not wanted again.
__device__ __forceinline__ uint64_t policy_evict_first() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

/// The same for L2 lines of no particular kind.
__device__ __forceinline__ uint64_t policy_evict_normal() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

/// The same for L2 lines that other CTAs want soon.
__device__ __forceinline__ uint64_t policy_evict_last() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

/// PTX ISA "cp.async.bulk": `bytes` (multiple of 16, both addresses 16-byte aligned) to shared memory; counts them on
/// `barrier` as they land.
__device__ __forceinline__ void bulk_load(uint32_t destination, const void* source, int bytes, uint32_t barrier,
                                          uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(destination),
      "l"(source), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

/// The same for lines that other CTAs want too.
__device__ __forceinline__ void bulk_load(uint32_t destination, const void* source, int bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(destination),
      "l"(source), "r"(bytes), "r"(barrier)
      : "memory");
}

}  // namespace quaver::ptx
