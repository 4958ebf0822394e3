#pragma once

#include "gemm/packed_fp8/instance.h"
#include "gemm/packed_fp8/kernel.cuh"

namespace quaver::packed_fp8 {

template <int kTokens, Scaling kScaling, Output kOutput, int kRows>
void Instance<kTokens, kScaling, kOutput, kRows>::prepare() {
  using Traits = GemmTraits<kTokens, kScaling, kOutput, kRows>;
  int most = 0;
  for (int split = 1; split <= (Traits::kMaySplit ? kMaxCluster : 1); ++split) {
    most = dynamic_bytes<Traits>(split) > most ? dynamic_bytes<Traits>(split) : most;
  }
  check_cuda(cudaFuncSetAttribute(quaver_gemm_fp8<Traits>, cudaFuncAttributeMaxDynamicSharedMemorySize, most),
             "cudaFuncSetAttribute");
}

template <int kTokens, Scaling kScaling, Output kOutput, int kRows>
int Instance<kTokens, kScaling, kOutput, kRows>::max_clusters(int cluster) {
  using Traits = GemmTraits<kTokens, kScaling, kOutput, kRows>;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(cluster));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = static_cast<size_t>(dynamic_bytes<Traits>(cluster));
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  check_cuda(cudaOccupancyMaxActiveClusters(&clusters, quaver_gemm_fp8<Traits>, &config),
             "cudaOccupancyMaxActiveClusters");
  return clusters;
}

template <int kTokens, Scaling kScaling, Output kOutput, int kRows>
void Instance<kTokens, kScaling, kOutput, kRows>::launch(Parameters parameters, cudaStream_t stream) {
  using Traits = GemmTraits<kTokens, kScaling, kOutput, kRows>;
  static_assert(ring_slots<Traits>(Traits::kMaySplit ? kMaxCluster : 1) >= 4,
                "a ring that covers the latency of memory");
  check((Traits::kMaySplit || parameters.grid.split == 1) && (Traits::kMayRange || parameters.grid.ranges == 0),
        "tile of ", Traits::kRows, "x", kTokens, ": expected no parts of K (split ", parameters.grid.split, ", ranges ",
        parameters.grid.ranges, ")");
  parameters.num_slots = ring_slots<Traits>(parameters.grid.split);
  if (parameters.aligned_rows && !Traits::kHigh) {
    parameters.out_map = make_tma_map({.data = static_cast<Bf16*>(parameters.out),
                                       .rows = parameters.m,
                                       .columns = parameters.n * Traits::kTokenOutputs / kWarpgroupRows,
                                       .stride = parameters.out_stride,
                                       .box_rows = Traits::kStagedTokens,
                                       .box_columns = Traits::kTokenOutputs});
  }
  launch_programmatic(quaver_gemm_fp8<Traits>,
                      dim3(static_cast<unsigned>(parameters.grid.cluster() * parameters.num_clusters)), kThreads,
                      dynamic_bytes<Traits>(parameters.grid.split), stream, parameters, parameters.grid.cluster());
}

}  // namespace quaver::packed_fp8
