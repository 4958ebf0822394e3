// Maxima, sums and searches over the threads of a warp or a CTA. Everything that is added is an integer, so the order
// does not matter.
#pragma once

#include <cstdint>

namespace quaver::sampling {

__device__ __forceinline__ int lane_index() {
  return static_cast<int>(threadIdx.x) % 32;
}
__device__ __forceinline__ int warp_index() {
  return static_cast<int>(threadIdx.x) / 32;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0U, x, step));
  return x;
}

template <class Integer>
__device__ __forceinline__ Integer warp_max(Integer x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const Integer other = __shfl_xor_sync(~0U, x, step);
    x = other > x ? other : x;
  }
  return x;
}

template <class Integer>
__device__ __forceinline__ Integer warp_sum(Integer x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0U, x, step);
  return x;
}

/// Sum over the lanes up to and including this one.
__device__ __forceinline__ uint64_t warp_scan(uint64_t x) {
#pragma unroll
  for (unsigned step = 1; step < 32; step *= 2) {
    const uint64_t below = __shfl_up_sync(~0U, x, step);
    if (lane_index() >= static_cast<int>(step)) x += below;
  }
  return x;
}

/// A result of every warp, in shared memory.
template <int kWarps>
struct WarpResults {
  uint64_t values[kWarps];
};

template <int kWarps>
__device__ __forceinline__ uint64_t block_max(uint64_t x, WarpResults<kWarps>& shared) {
  x = warp_max(x);
  if (lane_index() == 0) shared.values[warp_index()] = x;
  __syncthreads();
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) x = shared.values[warp] > x ? shared.values[warp] : x;
  __syncthreads();
  return x;
}

struct BlockScan {
  uint64_t before = 0;  ///< sum over the threads below this one
  uint64_t total = 0;
};

template <int kWarps>
__device__ __forceinline__ BlockScan block_scan(uint64_t x, WarpResults<kWarps>& shared) {
  const uint64_t in_warp = warp_scan(x);
  if (lane_index() == 31) shared.values[warp_index()] = in_warp;
  __syncthreads();
  BlockScan scan{.before = in_warp - x, .total = 0};
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) {
    if (warp < warp_index()) scan.before += shared.values[warp];
    scan.total += shared.values[warp];
  }
  __syncthreads();
  return scan;
}

/// Where a unit lies among items laid end to end. No initialisers: it lies in shared memory.
struct Place {
  int32_t item;   ///< -1: there are fewer units
  uint64_t left;  ///< units of the item in front of it
};

/// Of items 0 … count-1, by all threads of a CTA. `units(item)`; `target(total)` is the unit to look for.
template <int kWarps, class Units, class Target>
__device__ __forceinline__ Place locate(int count, const Units& units, const Target& target,
                                        WarpResults<kWarps>& shared, Place& found) {
  const int each = (count + 32 * kWarps - 1) / (32 * kWarps);
  const int first = static_cast<int>(threadIdx.x) * each;
  const int last = min(count, first + each);
  uint64_t own = 0;
  for (int item = first; item < last; ++item) own += units(item);
  if (threadIdx.x == 0) found = {.item = -1, .left = 0};
  const BlockScan scan = block_scan(own, shared);
  const uint64_t unit = target(scan.total);
  if (unit >= scan.before && unit - scan.before < own) {
    uint64_t left = unit - scan.before;
    int item = first;
    for (uint64_t of_item = units(item); left >= of_item; of_item = units(++item)) left -= of_item;
    found = {.item = item, .left = left};
  }
  __syncthreads();
  return found;
}

}  // namespace quaver::sampling
