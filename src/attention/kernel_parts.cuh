// Device code that the FP8 kernels have in common.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace quaver {

inline constexpr unsigned kAllLanes = 0xFFFFFFFFU;

/// Reads a struct whose size and address are multiples of 4 bytes past the L1 cache.
template <class T>
__device__ __forceinline__ void load_words(const T* from, T& to) {
  static_assert(sizeof(T) % 4 == 0);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(T) / 4); ++i) {
    reinterpret_cast<int*>(&to)[i] = __ldcg(reinterpret_cast<const int*>(from) + i);
  }
}

/// Position in a ring of barriers; `parity` is the phase to wait for.
template <int kSlots>
struct RingPosition {
  int slot = 0;
  uint32_t parity = 0;
  __device__ void advance() {
    if (++slot == kSlots) {
      slot = 0;
      parity ^= 1U;
    }
  }
};

/// Exponent e of the smallest power of two 2^e with largest / 2^e <= 448; 0 for a row of zeros.
__device__ __forceinline__ int query_exponent(float largest) {
  if (!(largest > 0.0F)) return 0;
  const int bits = __float_as_int(largest);
  // 448 = 1.75 * 2^8: mantissas above 1.75 need one more. 2^-118 keeps both the scale and its inverse normal.
  return max(-118, (bits >> 23) - 127 - 8 + ((bits & 0x7FFFFF) > 0x600000 ? 1 : 0));
}

}  // namespace quaver
