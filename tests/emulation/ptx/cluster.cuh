// Emulates src/ptx/cluster.cuh: same names, same meaning.
#pragma once

#include <cstdint>

#include "simt/thread.h"

namespace quaver::ptx {

inline int cluster_rank() {
  return simt::cluster_rank();
}
inline void cluster_arrive() {
  simt::cluster_arrive();
}
inline void cluster_wait() {
  simt::cluster_wait();
}
inline uint32_t cluster_address(uint32_t address, int rank) {
  return simt::cluster_address(address, rank);
}
inline void mbarrier_arrive_remote(uint32_t remote_barrier) {
  simt::mbarrier_arrive(remote_barrier, 0);
}
inline bool mbarrier_try_wait_cluster(uint32_t barrier, uint32_t parity) {
  return simt::mbarrier_test(barrier, parity, true);
}
inline void mbarrier_wait_cluster(uint32_t barrier, uint32_t parity) {
  while (!mbarrier_try_wait_cluster(barrier, parity)) {
  }
}
inline void store_async(uint32_t remote_address, float4 value, uint32_t remote_barrier) {
  simt::store_async(remote_address, value, remote_barrier);
}
inline void bulk_load_multicast(uint32_t destination, const void* source, int bytes, uint32_t barrier, uint16_t ranks,
                                uint64_t /*policy*/) {
  simt::copy_async(destination, source, bytes, barrier, ranks);
}

}  // namespace quaver::ptx
