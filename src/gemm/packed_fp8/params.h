// What the GEMM kernel takes: device pointers, scales and the tile grid.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/tma_map.h"
#include "gemm/packed_fp8/plan.h"

namespace quaver::packed_fp8 {

struct Parameters {
  const uint8_t* weights = nullptr;      ///< packed [N, K]
  const float* weight_scales = nullptr;  ///< kOuter: [N]; kBlock: [ceil(N/128), ceil(K/128)]
  const uint8_t* tokens = nullptr;       ///< packed [M, K]
  const float* token_scales = nullptr;   ///< kOuter: [M] or one; kBlock: [ceil(K/128), token_scale_stride]
  int64_t token_scale_stride = 0;        ///< kOuter: 1, or 0 where all tokens share one; kBlock: of a chunk's row
  void* out = nullptr;                   ///< [M, N] BF16 or FP32, or [M, N / 2] BF16; rows out_stride elements apart
  int64_t out_stride = 0;
  bool out_f32 = false;
  bool aligned_rows = false;  ///< 8 outputs of a row are one 16-byte store
  TmaMap out_map{};           ///< of BF16 `out` with aligned rows: Traits::kStagedTokens rows a box
  int m = 0;
  int n = 0;
  float4* partial_sums = nullptr;  ///< of the workspace
  int* arrivals = nullptr;         ///< of the workspace: all zero before and after
  TileGrid grid{};
  int num_clusters = 0;
  int num_slots = 0;  ///< of the ring
};

}  // namespace quaver::packed_fp8
