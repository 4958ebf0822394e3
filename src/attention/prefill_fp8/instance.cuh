#pragma once

#include "attention/prefill_fp8/instance.h"
#include "attention/prefill_fp8/kernel.cuh"
#include "core/cuda.h"

namespace quaver::prefill_fp8 {

template <int kHeadDim>
int Instance<kHeadDim>::prepare() {
  using Traits = PrefillTraits<kHeadDim>;
  const auto kernel = quaver_prefill_fp8<Traits>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes<Traits>),
             "cudaFuncSetAttribute");
  int ctas = 0;
  check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&ctas, kernel, Traits::kThreads, kSharedBytes<Traits>),
             "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  return ctas;
}

template <int kHeadDim>
void Instance<kHeadDim>::launch(const Parameters& parameters, int grid, cudaStream_t stream) {
  using Traits = PrefillTraits<kHeadDim>;
  launch_programmatic(quaver_prefill_fp8<Traits>, dim3(static_cast<unsigned>(grid)), Traits::kThreads,
                      kSharedBytes<Traits>, stream, parameters);
}

}  // namespace quaver::prefill_fp8
