// Device-side data and yardsticks of the attention benchmark.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "core/cuda.h"

namespace quaver::bench {

/// N(0, 1) values as E4M3 codes, the same for every run.
void fill_normal_e4m3(uint8_t* codes, int64_t count, uint64_t seed, cudaStream_t stream);
void fill_normal_bf16(__nv_bfloat16* values, int64_t count, uint64_t seed, cudaStream_t stream);

/// Reads `bytes` (a multiple of 16) and nothing else; flushes the L2 cache without leaving dirty lines.
void read_all(const void* memory, int64_t bytes, uint32_t* sink, cudaStream_t stream);

/// Clock of the SMs under a short load, in MHz.
[[nodiscard]] double measure_sm_clock_mhz(cudaStream_t stream);

}  // namespace quaver::bench
