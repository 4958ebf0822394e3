// The compiled kernels, in a file for each kind of scales and outputs under instances/.
#pragma once

#include "core/cuda.h"
#include "gemm/packed_fp8/params.h"

namespace quaver::packed_fp8 {

template <int kTokens, Scaling kScaling, Output kOutput = Output::kRows, int kRows = kBlockRows>
struct Instance {
  /// Lets the kernel use its shared memory on the current device.
  static void prepare();
  /// Clusters of `cluster` CTAs that run at once on the current device; 0 where the size is not possible.
  static int max_clusters(int cluster);
  /// Sets num_slots and launches.
  static void launch(Parameters parameters, cudaStream_t stream);
};

}  // namespace quaver::packed_fp8
