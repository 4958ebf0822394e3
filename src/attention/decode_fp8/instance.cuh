#pragma once

#include <type_traits>

#include "attention/decode_fp8/instance.h"
#include "attention/decode_fp8/kernel.cuh"
#include "core/cuda.h"

namespace quaver::decode_fp8 {

template <int kHeadDim, int kRows>
int Instance<kHeadDim, kRows>::prepare() {
  using Traits = std::conditional_t<kRows == kMaxRows, DecodeTraits<kHeadDim>, FewRowsTraits<kHeadDim, kRows>>;
  const auto kernel = quaver_decode_fp8<Traits>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Traits::kSharedBytes),
             "cudaFuncSetAttribute");
  int ctas = 0;
  check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&ctas, kernel, Traits::kThreads, Traits::kSharedBytes),
             "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  return ctas;
}

template <int kHeadDim, int kRows>
void Instance<kHeadDim, kRows>::launch(const Parameters& parameters, int grid, cudaStream_t stream) {
  using Traits = std::conditional_t<kRows == kMaxRows, DecodeTraits<kHeadDim>, FewRowsTraits<kHeadDim, kRows>>;
  launch_programmatic(quaver_decode_fp8<Traits>, dim3(static_cast<unsigned>(grid)), Traits::kThreads,
                      Traits::kSharedBytes, stream, parameters);
}

}  // namespace quaver::decode_fp8
