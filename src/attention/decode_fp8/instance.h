// The compiled head dims. Each is instantiated in a file of its own under instances/.
#pragma once

#include "attention/decode_fp8/params.h"

namespace quaver::decode_fp8 {

/// `kRows`: most query rows of an item, 4, 8 or 32.
template <int kHeadDim, int kRows>
struct Instance {
  /// Lets the kernel use its shared memory on the current device and returns how many CTAs fit an SM there.
  static int prepare();
  static void launch(const Parameters& parameters, int grid, cudaStream_t stream);
};

}  // namespace quaver::decode_fp8
