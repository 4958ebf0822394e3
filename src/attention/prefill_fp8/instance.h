// The compiled head dims. Each is instantiated in a file of its own under instances/.
#pragma once

#include "attention/prefill_fp8/params.h"

namespace quaver::prefill_fp8 {

template <int kHeadDim>
struct Instance {
  /// Lets the kernel use its shared memory on the current device and returns how many CTAs fit an SM there.
  static int prepare();
  static void launch(const Parameters& parameters, int grid, cudaStream_t stream);
};

}  // namespace quaver::prefill_fp8
