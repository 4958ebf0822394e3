// Barriers: mbarriers in shared memory and the named barriers of a CTA. One instruction per function.
#pragma once

#include <cstdint>

namespace quaver::ptx {

/// PTX ISA "elect.sync": true for one lane of the warp. All lanes take part.
__device__ __forceinline__ bool elect_one() {
  uint32_t elected;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(elected));
  return elected != 0;
}

/// Address of shared memory as the 32-bit value that shared-memory instructions take.
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

/// The same, held in a register: in kernels that may run in clusters the compiler otherwise works the address out from
/// the CTA's rank at each use, and loops wait for that.
__device__ __forceinline__ uint32_t held_shared_address(const void* pointer) {
  uint32_t address = shared_address(pointer);
  asm volatile("" : "+r"(address));
  return address;
}

/// PTX ISA "mbarrier.init": the phase completes after `arrivals` arrivals and all expected bytes.
__device__ __forceinline__ void mbarrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

/// PTX ISA "fence.mbarrier_init": makes initialised barriers visible to the async proxy.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;");
}

/// PTX ISA "mbarrier.arrive.expect_tx": one arrival, and `bytes` more to come from bulk copies.
__device__ __forceinline__ void mbarrier_arrive_expect(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

/// PTX ISA "mbarrier.arrive": one arrival.
__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// PTX ISA "mbarrier.try_wait": true when the phase with this parity has completed; may suspend for a while.
__device__ __forceinline__ bool mbarrier_try_wait(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
               : "=r"(done)
               : "r"(barrier), "r"(parity)
               : "memory");
  return done != 0;
}

/// PTX ISA "mbarrier.test_wait": the same, but never suspends.
__device__ __forceinline__ bool mbarrier_test_wait(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
               : "=r"(done)
               : "r"(barrier), "r"(parity)
               : "memory");
  return done != 0;
}

__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  while (!mbarrier_try_wait(barrier, parity)) {
  }
}

/// PTX ISA "bar.sync": named barrier `id` (1 … 15) among `threads` threads.
__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// PTX ISA "bar.arrive": counts towards barrier `id` without waiting.
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// PTX ISA "fence.proxy.async": shared memory written by ordinary stores becomes visible to WGMMA and bulk copies.
__device__ __forceinline__ void fence_proxy_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// The same for global memory that the following bulk copies read.
__device__ __forceinline__ void fence_proxy_async_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

/// PTX ISA "atom", .acq_rel.gpu: adds to a counter in global memory; earlier writes of the CTA (ordered by a barrier)
/// are visible to whoever reads the sum.
__device__ __forceinline__ int atomic_add_acq_rel(int* counter, int value) {
  int before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(value) : "memory");
  return before;
}

/// PTX ISA "ld", .acquire.gpu: what its writers wrote before they counted themselves is visible afterwards.
__device__ __forceinline__ int load_acquire(const int* counter) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
}

}  // namespace quaver::ptx
