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

/// Reads what would be fetched: it is there.
inline void bulk_prefetch(const void* source, int bytes) {
  const auto* const at = static_cast<const volatile uint8_t*>(source);
  if (bytes % 16 != 0 || reinterpret_cast<uintptr_t>(source) % 16 != 0)
    fail(ErrorKind::kInternal, "bulk_prefetch: expected 16-byte alignment");
  for (int i = 0; i < bytes; i += 16) static_cast<void>(at[i]);
}

}  // namespace quaver::ptx
