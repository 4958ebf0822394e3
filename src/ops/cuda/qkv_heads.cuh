// One head of one token in the registers of a few lanes: load, norm, rotation.
#pragma once

#include "kv_cache/append_write.cuh"
#include "ops/cuda/row.cuh"
#include "ops/cuda/row_output.cuh"

namespace quaver::device_ops {

inline constexpr int kQkvThreads = 256;
inline constexpr int kQkvWarps = kQkvThreads / 32;
inline constexpr int kQkvCtasPerSm = 2;  ///< by registers

struct QkvParameters {
  Bf16* qkv = nullptr;
  int64_t row_stride = 0;  ///< of a token, in elements
  int64_t num_tokens = 0;
  int num_q_heads = 0;
  int v_head = 0;  ///< the head of qkv where V begins: that of K on K = V layers
  const float* q_norm = nullptr;
  const float* k_norm = nullptr;
  bool v_norm = false;
  float eps = 0.0F;
  float inverse_dim = 0.0F;  ///< 1 / head_dim
  int table_pairs = 0;       ///< of a row of the rope table; pairs beyond keep their angle
  const float* rope_table = nullptr;
  const int64_t* slots = nullptr;
  const float* k_scale = nullptr;
  const float* v_scale = nullptr;
  append::Target target{};
  int v_ctas = 0;          ///< at the front of the grid: they write tiles of V, for FP8 pages
  int v_tile_heads = 1;    ///< heads of a tile that a CTA takes, one after another
  int v_tile_parts = 1;    ///< CTAs of a tile: ceil(heads / v_tile_heads)
  int heads_per_warp = 1;  ///< of a token, one after another
  int q_chunks = 0;        ///< ceil(heads / heads_per_warp)
  int k_chunks = 0;
  int v_chunks = 0;  ///< V by warps: of few tokens, or in BF16 pages as K
  int v_heads_per_warp = 1;

  [[nodiscard]] __device__ int head_dim() const { return target.layout.head_dim_k; }
  [[nodiscard]] QUAVER_HD int num_kv_heads() const { return target.layout.num_kv_heads; }
  /// Slot of a token; -1 outside the batch.
  [[nodiscard]] __device__ int64_t slot(int64_t token) const {
    return token >= 0 && token < num_tokens ? __ldcg(slots + token) : -1;
  }
  /// Head `head` of qkv: those of Q, of K, of V.
  [[nodiscard]] __device__ Bf16* row(int64_t token, int head) const {
    return qkv + token * row_stride + int64_t{head} * head_dim();
  }
};

/// A lane's columns of a head: c … c + 7 and c + D/2 … c + D/2 + 7, the partners that rotate with them.
struct HeadPart {
  Vector low;
  Vector high;
};

struct RawHeadPart {
  uint4 low{};
  uint4 high{};
  [[nodiscard]] __device__ HeadPart get() const { return {to_floats(low), to_floats(high)}; }
};

[[nodiscard]] __device__ __forceinline__ RawHeadPart load_head(const Bf16* part, int half) {
  return {load_vector(part), load_vector(part + half)};
}

/// The same columns of two heads, one behind the other.
struct HeadPair {
  RawHeadPart heads[2];
};

/// The first `count` heads of a pair; zeros for others.
[[nodiscard]] __device__ __forceinline__ HeadPair load_pair(const Bf16* part, int head_dim, int count) {
  HeadPair pair;
  if (count > 0) pair.heads[0] = load_head(part, head_dim / 2);
  if (count > 1) pair.heads[1] = load_head(part + head_dim, head_dim / 2);
  return pair;
}

/// Norm weights of V.
[[nodiscard]] __device__ __forceinline__ HeadPart ones() {
  HeadPart part;
#pragma unroll
  for (int i = 0; i < kVector; ++i) part.low.values[i] = part.high.values[i] = 1.0F;
  return part;
}

/// part / rms of the head that `kLanes` lanes have, times `weights`.
template <int kLanes>
[[nodiscard]] __device__ __forceinline__ HeadPart normed(const HeadPart& part, const HeadPart& weights,
                                                         float inverse_dim, float eps) {
  float squares = 0.0F;
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    squares = fmaf(part.low.values[i], part.low.values[i], squares);
    squares = fmaf(part.high.values[i], part.high.values[i], squares);
  }
  const float mean = reduce_lanes<kLanes>(squares, Add{}) * inverse_dim;
  const float inverse = rsqrtf(mean + eps);
  HeadPart result;
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    result.low.values[i] = part.low.values[i] * inverse * weights.low.values[i];
    result.high.values[i] = part.high.values[i] * inverse * weights.high.values[i];
  }
  return result;
}

/// Cosines and sines of a lane's 8 pairs.
struct Angles {
  float cos[kVector];
  float sin[kVector];
};

[[nodiscard]] __device__ __forceinline__ Angles load_angles(const float* table) {
  Angles angles;
#pragma unroll
  for (int i = 0; i < kVector; i += 2) {
    const float4 two = __ldcg(reinterpret_cast<const float4*>(table + 2 * i));
    angles.cos[i] = two.x, angles.sin[i] = two.y;
    angles.cos[i + 1] = two.z, angles.sin[i + 1] = two.w;
  }
  return angles;
}

__device__ __forceinline__ void rotate(HeadPart& part, const Angles& angles) {
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const float a = part.low.values[i];
    const float b = part.high.values[i];
    part.low.values[i] = a * angles.cos[i] - b * angles.sin[i];
    part.high.values[i] = b * angles.cos[i] + a * angles.sin[i];
  }
}

}  // namespace quaver::device_ops
