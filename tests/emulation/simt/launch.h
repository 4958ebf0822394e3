// How launches run.
#pragma once

#include <cstdint>

namespace quaver::simt {

/// While it lives, ready threads, CTAs and asynchronous copies take their turns in an order made of `seed` instead of
/// first come, first served with copies as late as can be.
class RandomOrder {
 public:
  explicit RandomOrder(uint64_t seed);
  RandomOrder(const RandomOrder&) = delete;
  RandomOrder& operator=(const RandomOrder&) = delete;
  ~RandomOrder();
};

/// Multiprocessors that cudaGetDeviceProperties() names.
inline constexpr int kMultiprocessors = 2;

}  // namespace quaver::simt
