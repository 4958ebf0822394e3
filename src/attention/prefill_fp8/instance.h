// The compiled kernels, by head dim and precision. Those of a head dim are instantiated in one file under instances/.
#pragma once

#include "attention/prefill_fp8/params.h"
#include "attention/prefill_fp8/traits.h"

namespace quaver::prefill_fp8 {

template <int kHeadDim, bool kSplit>
struct Instance {
  using Traits = PrefillTraits<kHeadDim, kSplit>;

  /// Lets the kernel use its shared memory on the current device and returns how many CTAs fit an SM there.
  static int prepare();
  static void launch(const Parameters& parameters, int grid, cudaStream_t stream);
};

}  // namespace quaver::prefill_fp8
