#pragma once

#include "attention/prefill_fp8/instance.h"
#include "attention/prefill_fp8/kernel.cuh"
#include "core/cuda.h"

namespace quaver::prefill_fp8 {

template <int kHeadDim, bool kSplit>
int Instance<kHeadDim, kSplit>::prepare() {
  const auto kernel = quaver_prefill_fp8<Traits>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes<Traits>),
             "cudaFuncSetAttribute");
  int ctas = 0;
  check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&ctas, kernel, Traits::kThreads, kSharedBytes<Traits>),
             "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  return ctas;
}

template <int kHeadDim, bool kSplit>
void Instance<kHeadDim, kSplit>::launch(const Parameters& parameters, int grid, cudaStream_t stream) {
  launch_programmatic(quaver_prefill_fp8<Traits>, dim3(static_cast<unsigned>(grid)), Traits::kThreads,
                      kSharedBytes<Traits>, stream, parameters);
}

}  // namespace quaver::prefill_fp8
