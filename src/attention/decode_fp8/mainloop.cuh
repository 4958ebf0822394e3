// One KV tile after the other: S = Q K^T, online softmax with an integer running maximum, T = P V into a fresh
// accumulator, O = O * 2^k + T in FP32.
//
// A thread (row g = lane / 4 of its warp, t = lane % 4) holds the hi part of its query row in accumulator rows g and
// the lo part in rows g + 8, so hi + lo/16 is one FMA inside the thread. The A operand of P V is made of the same
// registers.
#pragma once

#include "attention/decode_fp8/load.cuh"
#include "attention/decode_fp8/query.cuh"
#include "ptx/wgmma.cuh"

namespace quaver::decode_fp8 {

/// What a thread knows about its query row.
struct QueryRow {
  bool valid = false;   ///< the row exists
  bool active = false;  ///< some row of the warp exists
  float scale = 0.0F;   ///< accumulator to logit in log2 units
  int first_key = 0;    ///< visible keys: [first_key, last_key)
  int last_key = 0;
  int all_first = 0;  ///< keys that every row of the item sees
  int all_last = 0;
};

/// Softmax state of a thread's row and its columns of O: columns 8j + 2t, 8j + 2t + 1 in out[2j], out[2j + 1].
template <class Traits>
struct RowState {
  float out[Traits::kValueColumns / 4];
  float maximum = -INFINITY;  ///< log2 units, rounded up to an integer
  float sum = 0.0F;           ///< of this thread's tokens, times 2^kProbabilityBits
};

/// S of one tile in FP32: s[2j + e] belongs to token 8j + 2t + e.
template <class Traits>
__device__ __forceinline__ void compute_scores(uint32_t query, uint32_t key_tile, float (&s)[Traits::kTile / 4]) {
  constexpr int kSteps = Traits::kScoreChunk / 32;
  constexpr int kBuffers = Traits::kScoreChunks > 1 ? 2 : 1;
  float accumulator[kBuffers][Traits::kTile / 2];
  const auto add = [&](int chunk) {
    const float(&x)[Traits::kTile / 2] = accumulator[chunk % kBuffers];
#pragma unroll
    for (int j = 0; j < Traits::kTile / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float part = join_parts(x[4 * j + e], x[4 * j + 2 + e]);
        s[2 * j + e] = chunk == 0 ? part : s[2 * j + e] + part;
      }
    }
  };
#pragma unroll
  for (int chunk = 0; chunk < Traits::kScoreChunks; ++chunk) {
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {  // 32 columns: two core matrices of 128 bytes
      const uint32_t offset = (chunk * kSteps + step) * 256;
      ptx::wgmma(accumulator[chunk % kBuffers], ptx::matrix_descriptor(query + offset, 128, 8 * Traits::kHeadDim),
                 ptx::matrix_descriptor(key_tile + offset, 128, 8 * Traits::kHeadDim), step > 0);
    }
    ptx::wgmma_commit();
    if (chunk > 0) {
      ptx::wgmma_wait<1>();
      add(chunk - 1);
    }
  }
  ptx::wgmma_wait<0>();
  add(Traits::kScoreChunks - 1);
}

/// Logits in log2 units, softcapped and masked.
template <class Traits>
__device__ __forceinline__ void scale_and_mask(const Parameters& p, const QueryRow& row, int tile_token,
                                               float (&s)[Traits::kTile / 4]) {
#pragma unroll
  for (float& x : s) x *= row.scale;
  if (p.softcap_log2 > 0.0F) {  // cap * tanh(x / cap), tanh(y) = 1 - 2 / (1 + 2^(2 y log2 e))
    const float inward = 2.0F * 1.44269504F / p.softcap_log2;
#pragma unroll
    for (float& x : s) {
      x = p.softcap_log2 * fmaf(-2.0F, ptx::reciprocal_approx(1.0F + ptx::exp2_approx(x * inward)), 1.0F);
    }
  }
  if (tile_token < row.all_first || tile_token + Traits::kTile > row.all_last) {
    const int t = static_cast<int>(threadIdx.x) % 4;
    const int first = row.first_key - tile_token - 2 * t;
    const int last = row.last_key - tile_token - 2 * t;
#pragma unroll
    for (int j = 0; j < Traits::kTile / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (8 * j + e < first || 8 * j + e >= last) s[2 * j + e] = -INFINITY;
      }
    }
  }
}

/// Updates the running maximum and sum, leaves P in `p_codes` (A operand of the PV steps) and returns the factor of O.
template <class Traits>
__device__ __forceinline__ float softmax(float (&s)[Traits::kTile / 4], RowState<Traits>& state, uint32_t low_part_mask,
                                         uint32_t (&p_codes)[Traits::kTile / 32][4]) {
  float maximum = state.maximum;
#pragma unroll
  for (float x : s) maximum = fmaxf(maximum, x);
  maximum = fmaxf(maximum, __shfl_xor_sync(0xFFFFFFFFU, maximum, 1));
  maximum = fmaxf(maximum, __shfl_xor_sync(0xFFFFFFFFU, maximum, 2));
  // An integer maximum makes every rescale an exact power of two and the rounding of P independent of the tiles' order.
  maximum = ceilf(maximum);
  const float reference = maximum == -INFINITY ? 0.0F : maximum;
  const float factor = ptx::exp2_approx(state.maximum - reference);
  state.maximum = maximum;
  const float shift = reference - static_cast<float>(combine::kProbabilityBits);
  float sum = 0.0F;
#pragma unroll
  for (float& x : s) {
    x = ptx::exp2_approx(x - shift);
    sum += x;
  }
  state.sum = fmaf(state.sum, factor, sum);
#pragma unroll
  for (int k = 0; k < Traits::kTile / 32; ++k) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float* x = s + 8 * k + 4 * half;
      const SplitCodes codes = split_e4m3x4(x[0], x[1], x[2], x[3], low_part_mask);
      p_codes[k][2 * half] = codes.high;
      p_codes[k][2 * half + 1] = codes.low;
    }
  }
  return factor;
}

/// O = O * factor + P V, kValueChunk columns a step, each into a fresh accumulator.
template <class Traits>
__device__ __forceinline__ void accumulate_values(uint32_t value_tile, bool active, float factor,
                                                  const uint32_t (&p_codes)[Traits::kTile / 32][4],
                                                  float (&out)[Traits::kValueColumns / 4]) {
  constexpr int kChunk = Traits::kValueChunk;
  constexpr int kBuffers = Traits::kValueChunks > 1 ? 2 : 1;
  float accumulator[kBuffers][kChunk / 2];
  const auto add = [&](int chunk) {
    if (!active) return;
    const float(&x)[kChunk / 2] = accumulator[chunk % kBuffers];
#pragma unroll
    for (int j = 0; j < kChunk / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& o = out[chunk * (kChunk / 4) + 2 * j + e];
        o = fmaf(o, factor, join_parts(x[4 * j + e], x[4 * j + 2 + e]));
      }
    }
  };
#pragma unroll
  for (int chunk = 0; chunk < Traits::kValueChunks; ++chunk) {
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < Traits::kTile / 32; ++k) {
      const uint32_t address = value_tile + chunk * kChunk * 16 + k * 32 * Traits::kHeadDim;
      ptx::wgmma(accumulator[chunk % kBuffers], p_codes[k], ptx::matrix_descriptor(address, 16 * Traits::kHeadDim, 128),
                 k > 0);
    }
    ptx::wgmma_commit();
    if (chunk > 0) {
      ptx::wgmma_wait<1>();
      add(chunk - 1);
    }
  }
  ptx::wgmma_wait<0>();
  add(Traits::kValueChunks - 1);
}

/// All tiles of one item. `tile_slot` is the warpgroup's place in the ring.
template <class Traits>
__device__ __forceinline__ void attend(const Parameters& p, const WorkItem& item, const QueryRow& row,
                                       SharedState<Traits>& shared, uint32_t query, uint8_t* ring,
                                       RingPosition<Traits::kRingSlots>& tile_slot, RowState<Traits>& state) {
  const auto warpgroup = static_cast<int>(threadIdx.x) / 128;
  const auto wait_full = [&] {
    ptx::mbarrier_wait(ptx::shared_address(&shared.tile_full[tile_slot.slot]), tile_slot.parity);
  };
  const auto release = [&] {
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(ptx::shared_address(&shared.tile_empty[tile_slot.slot]));
    tile_slot.advance();
  };
#pragma unroll
  for (float& x : state.out) x = 0.0F;

  const int first_key = item.first_key;
  const int kv_len = item.kv_len;
  int tile_token = item.tile_begin * Traits::kTile;
  for (int tiles = item.tile_end - item.tile_begin; tiles > 0; --tiles, tile_token += Traits::kTile) {
    float s[Traits::kTile / 4];
    wait_full();
    compute_scores<Traits>(query, ptx::shared_address(ring + tile_slot.slot * Traits::kSlotBytes), s);
    release();

    uint32_t p_codes[Traits::kTile / 32][4];
    float factor = 1.0F;
    if (row.active) {
      scale_and_mask<Traits>(p, row, tile_token, s);
      factor = softmax<Traits>(s, state, p.low_part_mask, p_codes);
    } else {
#pragma unroll
      for (auto& step : p_codes) step[0] = step[1] = step[2] = step[3] = 0;
    }

    wait_full();
    uint8_t* values = ring + tile_slot.slot * Traits::kSlotBytes;
    if (tile_token < first_key || tile_token + Traits::kTile > kv_len) {
      clear_unseen_values<Traits::kTile, Traits::kHeadDim, 128>(values, warpgroup * Traits::kValueColumns,
                                                                Traits::kValueColumns, first_key - tile_token,
                                                                kv_len - tile_token);
      ptx::fence_proxy_async_shared();
      ptx::named_barrier_sync(2 + warpgroup, 128);
    }
    accumulate_values<Traits>(ptx::shared_address(values) + warpgroup * Traits::kValueColumns * 16, row.active, factor,
                              p_codes, state.out);
    release();
  }
}

}  // namespace quaver::decode_fp8
