// A chunk of a row (1,024 tokens) in the registers of a warp: read once, in 8 pieces of 128 tokens, a lane 4 tokens of
// each.
#pragma once

#include "ops/cuda/sampling/params.h"
#include "ops/cuda/sampling/reduce.cuh"

namespace quaver::sampling {

inline constexpr int kPerLane = kChunkTokens / 32;
inline constexpr int kPiece = 128;

struct Chunk {
  int index = 0;
  float logits[kPerLane];

  /// The token whose logit is logits[k].
  [[nodiscard]] __device__ __forceinline__ int32_t token(int k) const {
    return index * kChunkTokens + k / 4 * kPiece + lane_index() * 4 + k % 4;
  }
};

/// Logits after the final softcap; -inf behind the vocabulary.
__device__ __forceinline__ Chunk load_model_logits(const Parameters& p, int64_t row, int index) {
  Chunk chunk;
  chunk.index = index;
  const float* from = p.logits + row * p.stride + chunk.token(0);
  const bool full = (index + 1) * kChunkTokens <= p.vocab;
  if (p.by_fours && full) {
#pragma unroll
    for (int i = 0; i < kPerLane / 4; ++i) {
      const float4 four = __ldcg(reinterpret_cast<const float4*>(from + i * kPiece));
      chunk.logits[4 * i] = four.x;
      chunk.logits[4 * i + 1] = four.y;
      chunk.logits[4 * i + 2] = four.z;
      chunk.logits[4 * i + 3] = four.w;
    }
  } else {
#pragma unroll
    for (int k = 0; k < kPerLane; ++k) {
      chunk.logits[k] = chunk.token(k) < p.vocab ? __ldcg(from + k / 4 * kPiece + k % 4) : 0.0F;
    }
  }
  if (p.softcap.cap > 0.0F) {
#pragma unroll
    for (int k = 0; k < kPerLane; ++k) chunk.logits[k] = p.softcap(chunk.logits[k]);
  }
  if (!full) {
#pragma unroll
    for (int k = 0; k < kPerLane; ++k) {
      if (chunk.token(k) >= p.vocab) chunk.logits[k] = -INFINITY;
    }
  }
  return chunk;
}

/// One logit after the final softcap.
__device__ __forceinline__ float load_model_logit(const Parameters& p, int64_t row, int32_t token) {
  return p.softcap(__ldcg(p.logits + row * p.stride + token));
}

/// What a token's mark does to its logit: bias, penalties, min_tokens.
__device__ inline float adjusted(float logit, int32_t token, uint32_t mark, const Slot& slot) {
  if ((mark & kBiased) != 0) {
    int low = 0;  // becomes the first bias of this token
    int high = slot.num_biases;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (slot.biases[middle].id < token) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    for (; low < slot.num_biases && slot.biases[low].id == token; ++low) logit += slot.biases[low].logit;
  }
  if ((mark & (kInPrompt | kCountMask)) != 0) {
    logit = penalised(logit, slot.penalties, static_cast<int32_t>(mark & kCountMask));
  }
  return (mark & kForbidden) != 0 && slot.num_generated < slot.min_tokens ? -INFINITY : logit;
}

/// Applies the slot's marks. They are few: a lane looks for its own, and changes them one by one in a copy.
__device__ __forceinline__ void adjust(Chunk& chunk, const Slot& slot) {
  if (!uses_marks(slot)) return;
  const uint16_t* marks = slot.marks + chunk.token(0);
  uint32_t marked = 0;  // bit k: logits[k]
#pragma unroll
  for (int i = 0; i < kPerLane / 4; ++i) {
    const uint2 four = __ldcg(reinterpret_cast<const uint2*>(marks + i * kPiece));
    marked |= ((four.x & 0xFFFFU) != 0 ? 1U : 0U) << (4 * i);
    marked |= (four.x >> 16U != 0 ? 2U : 0U) << (4 * i);
    marked |= ((four.y & 0xFFFFU) != 0 ? 4U : 0U) << (4 * i);
    marked |= (four.y >> 16U != 0 ? 8U : 0U) << (4 * i);
  }
  if (marked == 0) return;
  float changed[kPerLane];
#pragma unroll
  for (int k = 0; k < kPerLane; ++k) changed[k] = chunk.logits[k];
#pragma unroll 1
  for (; marked != 0; marked &= marked - 1) {
    const int k = __ffs(static_cast<int>(marked)) - 1;
    const uint32_t mark = __ldcg(marks + k / 4 * kPiece + k % 4);
    changed[k] = adjusted(changed[k], chunk.token(k), mark, slot);
  }
#pragma unroll
  for (int k = 0; k < kPerLane; ++k) chunk.logits[k] = changed[k];
}

/// The logits that the slot draws from.
__device__ __forceinline__ Chunk load_drawn_logits(const Parameters& p, int64_t row, int index, const Slot& slot) {
  Chunk chunk = load_model_logits(p, row, index);
  adjust(chunk, slot);
  return chunk;
}

/// NaN is never the best.
__device__ __forceinline__ float best_of(const Chunk& chunk) {
  float best = -INFINITY;
#pragma unroll
  for (int k = 0; k < kPerLane; ++k) best = fmaxf(best, chunk.logits[k]);
  return warp_max(best);
}

__device__ __forceinline__ bool has_nan(const Chunk& chunk) {
  bool found = false;
#pragma unroll
  for (int k = 0; k < kPerLane; ++k) found |= chunk.logits[k] != chunk.logits[k];
  return __any_sync(~0U, found ? 1 : 0) != 0;
}

__device__ __forceinline__ uint64_t sum_of(const Chunk& chunk, float scale, int32_t reference) {
  uint64_t sum = 0;
#pragma unroll
  for (int k = 0; k < kPerLane; ++k) sum += weight_units(chunk.logits[k], scale, reference);
  return warp_sum(sum);
}

/// The token in which unit number `left` of a chunk lies, by all lanes of a warp. `units(k)` of logits[k].
template <class Units>
__device__ __forceinline__ int32_t locate_token(const Chunk& chunk, uint64_t left, const Units& units) {
  int32_t token = -1;
#pragma unroll
  for (int i = 0; i < kPerLane / 4; ++i) {
    uint64_t own[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) own[j] = units(4 * i + j);
    const uint64_t sum = own[0] + own[1] + own[2] + own[3];
    const uint64_t end = warp_scan(sum);
    const uint64_t total = __shfl_sync(~0U, end, 31);
    if (token < 0 && left < total) {
      const int lane = __ffs(static_cast<int>(__ballot_sync(~0U, left < end))) - 1;
      uint64_t in_lane = left - (end - sum);
      int j = 0;
#pragma unroll
      for (int at = 0; at < 3; ++at) {
        if (j == at && in_lane >= own[at]) {
          in_lane -= own[at];
          ++j;
        }
      }
      token = __shfl_sync(~0U, chunk.token(4 * i + j), lane);
    }
    left -= total;
  }
  return token;
}

/// The best logit of a row and the first chunk that has it, by all threads of a CTA; NaN if a chunk's best is NaN.
struct RowBest {
  float logit = 0.0F;
  int32_t chunk = 0;
};
template <int kWarps>
__device__ __forceinline__ RowBest best_of_row(const float* bests, int chunks, WarpResults<kWarps>& shared) {
  uint64_t first = 0;
  for (int i = static_cast<int>(threadIdx.x); i < chunks; i += 32 * kWarps) {
    const uint64_t order = order_of(__ldcg(bests + i), i);  // a NaN comes before all numbers
    first = order > first ? order : first;
  }
  first = block_max(first, shared);
  return {.logit = logit_of(static_cast<uint32_t>(first >> 32U)), .chunk = id_of(first)};
}

}  // namespace quaver::sampling
