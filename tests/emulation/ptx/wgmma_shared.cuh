// Emulates src/ptx/wgmma_shared.cuh; its products are those of wgmma.cuh here.
#pragma once

#include <cstdint>

#include "ptx/wgmma.cuh"

namespace quaver::ptx {

inline uint64_t advance_descriptor(uint64_t descriptor, int bytes) {
  return (descriptor & 0xFFFFFFFF00000000U) | static_cast<uint32_t>(descriptor + static_cast<uint64_t>(bytes / 16));
}

}  // namespace quaver::ptx
