// Emulates src/ptx/barrier.cuh: same names, same meaning.
#pragma once

#include <cstdint>

#include "simt/thread.h"

namespace quaver::ptx {

inline bool elect_one() {
  simt::exchange(0xFFFFFFFFU, "elect.sync", 0);
  return simt::running().lane() == 0;
}
inline uint32_t shared_address(const void* pointer) {
  return simt::shared_address(pointer);
}
inline uint32_t held_shared_address(const void* pointer) {
  return simt::shared_address(pointer);
}
inline void mbarrier_init(uint32_t barrier, int arrivals) {
  simt::mbarrier_init(barrier, arrivals);
}
inline void fence_mbarrier_init() {}
inline void mbarrier_arrive_expect(uint32_t barrier, int bytes) {
  simt::mbarrier_arrive(barrier, bytes);
}
inline void mbarrier_arrive(uint32_t barrier) {
  simt::mbarrier_arrive(barrier, 0);
}
inline bool mbarrier_try_wait(uint32_t barrier, uint32_t parity) {
  return simt::mbarrier_test(barrier, parity, true);
}
inline bool mbarrier_test_wait(uint32_t barrier, uint32_t parity) {
  return simt::mbarrier_test(barrier, parity, false);
}
inline void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  while (!mbarrier_try_wait(barrier, parity)) {
  }
}
inline void named_barrier_sync(int id, int threads) {
  simt::named_barrier(id, threads, true);
}
inline void named_barrier_arrive(int id, int threads) {
  simt::named_barrier(id, threads, false);
}
inline void fence_proxy_async_shared() {}
inline void fence_proxy_async_global() {}
inline int atomic_add_acq_rel(int* counter, int value) {
  return atomicAdd(counter, value);
}
inline int load_acquire(const int* counter) {
  simt::poll("ld.acquire");
  return *counter;
}

}  // namespace quaver::ptx
