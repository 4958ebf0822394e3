// Thread block clusters: barriers, shared memory and bulk copies across the CTAs of a cluster. One instruction per
// function.
#pragma once

#include <cstdint>

namespace quaver::ptx {

/// PTX ISA "%cluster_ctarank": number of this CTA inside its cluster.
__device__ __forceinline__ int cluster_rank() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

/// PTX ISA "barrier.cluster.arrive", .relaxed: orders no memory accesses of its own (a fence before it may). All lanes
/// of a warp together.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

/// PTX ISA "barrier.cluster.wait": returns when all threads of the cluster have arrived. All lanes of a warp together.
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/// PTX ISA "mapa": the address, in the shared memory of CTA `rank`, of what lies at `address` in this one.
__device__ __forceinline__ uint32_t cluster_address(uint32_t address, int rank) {
  uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  return remote;
}

/// PTX ISA "mbarrier.arrive" on a barrier of any CTA of the cluster, after the last read of memory that the other CTA
/// is going to overwrite by asynchronous copies. (With .release.cluster loops around it run at half speed.)
__device__ __forceinline__ void mbarrier_arrive_remote(uint32_t remote_barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(remote_barrier) : "memory");
}

/// PTX ISA "mbarrier.try_wait", .acquire.cluster: what other CTAs wrote before the phase completed is visible.
__device__ __forceinline__ bool mbarrier_try_wait_cluster(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

__device__ __forceinline__ void mbarrier_wait_cluster(uint32_t barrier, uint32_t parity) {
  while (!mbarrier_try_wait_cluster(barrier, parity)) {
  }
}

/// PTX ISA "st.async": 16 bytes to the shared memory of a CTA of the cluster, counted on its barrier as they land.
__device__ __forceinline__ void store_async(uint32_t remote_address, float4 value, uint32_t remote_barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                   remote_address),
               "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(remote_barrier)
               : "memory");
}

/// PTX ISA "cp.async.bulk", .multicast::cluster: to the same place in every CTA whose bit is set in `ranks`.
__device__ __forceinline__ void bulk_load_multicast(uint32_t destination, const void* source, int bytes,
                                                    uint32_t barrier, uint16_t ranks, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4, %5;" ::"r"(destination),
      "l"(source), "r"(bytes), "r"(barrier), "h"(ranks), "l"(policy)
      : "memory");
}

}  // namespace quaver::ptx
