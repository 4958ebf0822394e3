// Device code that the FP8 kernels have in common.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kv_cache/page_format.h"
#include "ptx/convert.cuh"

namespace quaver {

inline constexpr unsigned kAllLanes = 0xFFFFFFFFU;

/// Weight of a lo part: x = hi + lo / 16.
inline constexpr float kLowWeight = 0.0625F;

/// Reads a struct whose size and address are multiples of 4 bytes past the L1 cache.
template <class T>
__device__ __forceinline__ void load_words(const T* from, T& to) {
  static_assert(sizeof(T) % 4 == 0);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(T) / 4); ++i) {
    reinterpret_cast<int*>(&to)[i] = __ldcg(reinterpret_cast<const int*>(from) + i);
  }
}

/// The sequence that owns query row `token`: the last b with query_start[b] <= token, or -1.
[[nodiscard]] inline __device__ int find_sequence(const int32_t* query_start, int num_sequences, int64_t token) {
  int low = 0;  // query_start[low] <= token < query_start[high], if any is
  int high = num_sequences;
  if (num_sequences == 0 || token < query_start[0] || token >= query_start[num_sequences]) return -1;
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    (query_start[middle] <= token ? low : high) = middle;
  }
  return low;
}

/// Position in a ring of barriers; `parity` is the phase to wait for.
template <int kSlots>
struct RingPosition {
  int slot = 0;
  uint32_t parity = 0;
  __device__ void advance() {
    if (++slot == kSlots) {
      slot = 0;
      parity ^= 1U;
    }
  }
};

/// Exponent e of the smallest power of two 2^e with largest / 2^e <= 448; 0 for a row of zeros.
__device__ __forceinline__ int query_exponent(float largest) {
  if (!(largest > 0.0F)) return 0;
  const int bits = __float_as_int(largest);
  // 448 = 1.75 * 2^8: mantissas above 1.75 need one more. 2^-118 keeps both the scale and its inverse normal.
  return max(-118, (bits >> 23) - 127 - 8 + ((bits & 0x7FFFFF) > 0x600000 ? 1 : 0));
}

/// Four values as hi + lo/16. The rest of a BF16 value after its E4M3 part is exact in E4M3 once multiplied by 16,
/// unless it falls among the subnormals.
struct SplitCodes {
  uint32_t high;
  uint32_t low;
};

__device__ __forceinline__ SplitCodes split_e4m3x4(float a, float b, float c, float d, uint32_t low_part_mask) {
  const uint32_t high = ptx::to_e4m3x4(a, b, c, d);
  const float2 ab = ptx::from_e4m3x2(static_cast<uint16_t>(high));
  const float2 cd = ptx::from_e4m3x2(static_cast<uint16_t>(high >> 16));
  constexpr float kUp = 1.0F / kLowWeight;
  const uint32_t low =
      ptx::to_e4m3x4((a - ab.x) * kUp, (b - ab.y) * kUp, (c - cd.x) * kUp, (d - cd.y) * kUp) & low_part_mask;
  return {.high = high, .low = low};
}

/// Two values: the codes of the hi parts in the lower half of the word, those of the lo parts in the upper.
__device__ __forceinline__ uint32_t split_e4m3x2(float a, float b, uint32_t low_part_mask) {
  const uint32_t high = ptx::to_e4m3x2(a, b);
  const float2 ab = ptx::from_e4m3x2(static_cast<uint16_t>(high));
  constexpr float kUp = 1.0F / kLowWeight;
  const uint32_t low = ptx::to_e4m3x2((a - ab.x) * kUp, (b - ab.y) * kUp);
  return high | (low & low_part_mask) << 16;
}

/// The two accumulators of a value whose hi and lo parts stand 8 rows apart: registers 4j + e and 4j + 2 + e.
__device__ __forceinline__ float join_parts(float high, float low) {
  return fmaf(low, kLowWeight, high);
}

/// Zeroes the bytes of a V tile outside the tokens [first, last) in columns [first_column, first_column + columns): 0 *
/// NaN must not reach O. By kThreads threads, whose proxy fence and barrier must follow.
template <int kTile, int kHeadDim, int kThreads>
__device__ __forceinline__ void clear_unseen_values(uint8_t* value_tile, int first_column, int columns, int first,
                                                    int last) {
  for (int block = 0; block < kTile / 16; ++block) {
    const int from = first - 16 * block;  // tokens of the block to keep: [from, to)
    const int to = last - 16 * block;
    if (from <= 0 && to >= 16) continue;
    for (int column = static_cast<int>(threadIdx.x) % kThreads; column < columns; column += kThreads) {
      auto* group = reinterpret_cast<uint4*>(value_tile + (block * kHeadDim + first_column + column) * 16);
      uint32_t words[4] = {};
      if (from < 16 && to > 0) {
        *reinterpret_cast<uint4*>(words) = *group;
#pragma unroll
        for (int position = 0; position < 16; ++position) {
          const int token = page_format::v_position_token(position);
          if (token < from || token >= to) words[position / 4] &= ~(0xFFU << (8 * (position % 4)));
        }
      }
      *group = *reinterpret_cast<uint4*>(words);
    }
  }
}

}  // namespace quaver
