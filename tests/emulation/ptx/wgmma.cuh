// Emulates src/ptx/wgmma.cuh: same names, same meaning, any N that WGMMA has. Results are written when the warpgroup
// waits for them.
#pragma once

#include <cstdint>

#include "simt/thread.h"

namespace quaver::ptx {

inline uint64_t matrix_descriptor(uint32_t address, uint32_t leading, uint32_t stride) {
  return static_cast<uint64_t>((address & 0x3FFFFU) >> 4) | static_cast<uint64_t>(leading >> 4) << 16 |
         static_cast<uint64_t>(stride >> 4) << 32;
}
inline constexpr uint32_t descriptor_low(uint32_t address, uint32_t leading) {
  return ((address & 0x3FFFFU) >> 4) | (leading >> 4) << 16;
}
inline constexpr uint64_t descriptor(uint32_t low, uint32_t stride) {
  return static_cast<uint64_t>(low) | static_cast<uint64_t>(stride >> 4) << 32;
}

inline void wgmma_fence() {}
inline void wgmma_commit() {
  simt::wgmma_commit();
}
template <int kPending>
inline void wgmma_wait() {
  simt::wgmma_wait(kPending);
}
template <int kCount>
inline void pin(float (& /*values*/)[kCount]) {}

template <int kCount>
inline void wgmma(float (&d)[kCount], uint64_t a, uint64_t b, bool accumulate) {
  static_assert(kCount % 4 == 0 && kCount <= 128, "N is a multiple of 8, at most 256");
  simt::wgmma_issue({.d = d, .n = 2 * kCount, .a = a, .b = b, .accumulate = accumulate});
}
template <int kCount>
inline void wgmma(float (&d)[kCount], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
  static_assert(kCount % 4 == 0 && kCount <= 128, "N is a multiple of 8, at most 256");
  simt::wgmma_issue({.d = d,
                     .n = 2 * kCount,
                     .a_in_registers = true,
                     .a_codes = {a[0], a[1], a[2], a[3]},
                     .b = b,
                     .accumulate = accumulate});
}

}  // namespace quaver::ptx
