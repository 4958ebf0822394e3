// Cosines and sines of a step's positions: a thread an angle.
#pragma once

#include <cmath>
#include <cstdint>

#include "ptx/launch.cuh"

namespace quaver::device_ops {

struct RopeTableParameters {
  const int32_t* positions = nullptr;
  const float* frequencies = nullptr;
  int rotary_pairs = 0;
  int pairs = 0;  ///< of a row of the table: padded with angles of 0
  int num_tokens = 0;
  float2* table = nullptr;
};

/// In FP64, as the CPU's: the angle is an FP32 product of up to max_positions radians, too large for FP32 sines.
template <int kThreads>
__global__ void __launch_bounds__(kThreads) quaver_rope_table(const __grid_constant__ RopeTableParameters p) {
  ptx::launch_dependents();
  ptx::grid_dependency_wait();
  const auto index = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  const int token = index / p.pairs;
  const int pair = index % p.pairs;
  if (token >= p.num_tokens) return;
  float2 entry{1.0F, 0.0F};
  if (pair < p.rotary_pairs) {
    const float angle = static_cast<float>(__ldcg(p.positions + token)) * __ldg(p.frequencies + pair);
    entry = {static_cast<float>(cos(double{angle})), static_cast<float>(sin(double{angle}))};
  }
  p.table[index] = entry;
}

}  // namespace quaver::device_ops
