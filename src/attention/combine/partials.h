// Partial results of items that several CTAs share, and where finished rows go. Filled by a decode kernel, added up by
// merge.cuh.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace quaver::combine {

/// P is E4M3 at 2^kProbabilityBits (the largest of a row lies in (128, 256]), and so are sums and partial outputs.
inline constexpr int kProbabilityBits = 8;

/// A float per (sequence, kv head), any strides; 1.0 when not given.
struct Descale {
  const float* values = nullptr;
  int64_t sequence_stride = 0;
  int64_t head_stride = 0;
  [[nodiscard]] __device__ float at(int sequence, int head) const {
    return values == nullptr ? 1.0F : values[sequence * sequence_stride + head * head_stride];
  }
};

/// Rows of a [T, Hq, ...] tensor.
struct RowStrides {
  int64_t token = 0;
  int64_t head = 0;
};

/// Where finished rows go, and what scales them.
struct Output {
  void* out = nullptr;  ///< [T, Hq, D] bf16, or f32
  bool out_f32 = false;
  RowStrides out_strides{};
  float* lse = nullptr;  ///< [T, Hq], or null
  RowStrides lse_strides{};
  const float* sinks = nullptr;    ///< [Hq] or null
  const float* v_scale = nullptr;  ///< [Hkv] or null
  Descale v_descale{};
  int group = 1;
};

/// Partial results of items that several pieces share.
struct Partials {
  float* out = nullptr;       ///< [slots][max_rows][D], not normalised
  float2* max_sum = nullptr;  ///< [slots][max_rows]: running maximum (log2 units, an integer) and sum
  int* arrived = nullptr;     ///< [slots]: parts written so far of the item whose first slot this is; 0 between kernels
  int max_rows = 0;
};

}  // namespace quaver::combine
