// The ring of shared-memory slots between the loading warps and the math warps.
#pragma once

#include <cstdint>

namespace quaver::packed_fp8 {

/// A slot, and the parity of the phase of its barrier to wait for.
struct RingPosition {
  int slot = 0;
  uint32_t parity = 0;

  __device__ RingPosition next(int num_slots) const {
    return slot + 1 == num_slots ? RingPosition{0, parity ^ 1U} : RingPosition{slot + 1, parity};
  }
};

}  // namespace quaver::packed_fp8
