// Slots: new owners, and tokens for the next step. What the host sends travels as kernel parameters (copied at the
// launch, so there is no staging memory to wait for).
#pragma once

#include "ops/cuda/sampling/slot.h"
#include "ptx/launch.cuh"

namespace quaver::sampling {

inline constexpr int kSlotThreads = 128;
inline constexpr int kSent = 1000;  ///< entries of one launch: 8 KB of parameters

struct SlotParameters {
  Slot* to = nullptr;
  Slot slot{};
};

__global__ void quaver_sampling_start(const __grid_constant__ SlotParameters p) {
  ptx::launch_dependents();
  ptx::grid_dependency_wait();
  *p.to = p.slot;
}

template <class Entry, class To>
struct SendParameters {
  To* to = nullptr;
  int32_t count = 0;
  Entry entries[kSent] = {};
};
using MarkParameters = SendParameters<Mark, uint16_t>;
using BiasParameters = SendParameters<TokenLogit, TokenLogit>;

__global__ void __launch_bounds__(kSlotThreads) quaver_sampling_mark(const __grid_constant__ MarkParameters p) {
  ptx::launch_dependents();
  ptx::grid_dependency_wait();
  for (int i = static_cast<int>(threadIdx.x); i < p.count; i += kSlotThreads) {
    p.to[p.entries[i].id] = static_cast<uint16_t>(p.entries[i].bits);
  }
}

__global__ void __launch_bounds__(kSlotThreads) quaver_sampling_biases(const __grid_constant__ BiasParameters p) {
  ptx::launch_dependents();
  ptx::grid_dependency_wait();
  for (int i = static_cast<int>(threadIdx.x); i < p.count; i += kSlotThreads) p.to[i] = p.entries[i];
}

struct FeedbackParameters {
  const Slot* slots = nullptr;
  const int32_t* row_slots = nullptr;
  int32_t* token_ids = nullptr;
  int64_t count = 0;
};

__global__ void __launch_bounds__(kSlotThreads) quaver_sampling_feedback(const __grid_constant__ FeedbackParameters p) {
  ptx::launch_dependents();
  ptx::grid_dependency_wait();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kSlotThreads + threadIdx.x;
  if (i >= p.count) return;
  const int32_t slot = __ldcg(p.row_slots + i);
  if (slot >= 0) p.token_ids[i] = p.slots[slot].last_token;
}

}  // namespace quaver::sampling
