// How launches run.
#pragma once

#include <cstdint>
#include <functional>

#include "cuda_runtime_api.h"

namespace quaver::simt {

class Changes;

struct LaunchShape {
  dim3 grid{};
  dim3 block{};
  int shared_bytes = 0;
  int cluster = 1;
};

/// Runs `thread` once for every thread of the launch; `hidden`: what it must not see before griddepcontrol.wait
/// (early_start.h). Throws Error with what a thread did wrong.
void run_launch(const LaunchShape& shape, const std::function<void()>& thread, Changes* hidden = nullptr);

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
