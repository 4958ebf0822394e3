// Emulates src/ptx/bulk_copy.cuh: same names, same meaning. The destination is unusable until the copy lands.
#pragma once

#include <cstdint>

#include "simt/thread.h"

namespace quaver::ptx {

inline uint64_t policy_evict_first() {
  return 0;
}
inline uint64_t policy_evict_normal() {
  return 0;
}
inline uint64_t policy_evict_last() {
  return 0;
}
inline void bulk_load(uint32_t destination, const void* source, int bytes, uint32_t barrier, uint64_t /*policy*/) {
  simt::copy_async(destination, source, bytes, barrier, 0);
}
inline void bulk_load(uint32_t destination, const void* source, int bytes, uint32_t barrier) {
  simt::copy_async(destination, source, bytes, barrier, 0);
}

}  // namespace quaver::ptx
