// What a math warpgroup does with one KV tile: S = Q K^T, online softmax with an integer running maximum, T = P V into
// a fresh accumulator, O = O * 2^k + T in FP32.
//
// A thread (row g = lane / 4 of its warp, t = lane % 4) holds rows g and g + 8: columns 8j + 2t, 8j + 2t + 1 of row g
// are registers 4j, 4j + 1, of row g + 8 registers 4j + 2, 4j + 3. Converted in pairs, the registers of S are the
// A operand of P V because of the token order of V pages.
#pragma once

#include "attention/prefill_fp8/load.cuh"
#include "core/static_for.h"
#include "ptx/wgmma.cuh"

namespace quaver::prefill_fp8 {

/// Softmax state of a thread's rows and its columns of O.
template <class Traits>
struct RowState {
  float out[Traits::kHeadDim / 2];
  float maximum[2];  ///< log2 units, rounded up to an integer; finite, so that rows without a key need no branch
  float sum[2];      ///< of this thread's tokens, times 2^kProbabilityBits
};

inline constexpr float kNoMaximum = -1e30F;

template <class Traits>
__device__ __forceinline__ void reset(RowState<Traits>& state) {
#pragma unroll
  for (float& x : state.out) x = 0.0F;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    state.maximum[i] = kNoMaximum;
    state.sum[i] = 0.0F;
  }
}

/// S of one tile; runs until the caller waits. Steps of 32 columns are two core matrices of 128 bytes.
template <class Traits>
__device__ __forceinline__ void issue_scores(uint32_t query_low, int stage, float (&s)[Traits::kTile / 2]) {
  constexpr uint32_t kKeyLow = ptx::descriptor_low(Traits::kKeys, 128);
  const uint32_t key_low = kKeyLow + stage * (Traits::kTileBytes >> 4);
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < Traits::kHeadDim / 32; ++step) {
    ptx::wgmma(s, ptx::descriptor(query_low + step * 16, 8 * Traits::kHeadDim),
               ptx::descriptor(key_low + step * 16, 8 * Traits::kHeadDim), step > 0);
  }
  ptx::wgmma_commit();
}

/// Logits in log2 units become cap * tanh(logit / cap); tanh(y) = 1 - 2 / (1 + 2^(2 y log2 e)).
template <class Traits>
__device__ __forceinline__ void apply_softcap(const Parameters& p, const RowInfo* rows, float (&s)[Traits::kTile / 2]) {
  const float inward[2] = {rows[0].scale * p.softcap_inward, rows[8].scale * p.softcap_inward};
#pragma unroll
  for (int i = 0; i < Traits::kTile / 2; ++i) {
    const float x = s[i] * inward[i % 4 / 2];
    s[i] = p.softcap_log2 * fmaf(-2.0F, ptx::reciprocal_approx(1.0F + ptx::exp2_approx(x)), 1.0F);
  }
}

template <class Traits>
__device__ __forceinline__ void apply_mask(const RowInfo* rows, int tile_token, float (&s)[Traits::kTile / 2]) {
  const int column = tile_token + static_cast<int>(threadIdx.x) % 4 * 2;
  const int first[2] = {rows[0].first_key - column, rows[8].first_key - column};
  const int last[2] = {rows[0].last_key - column, rows[8].last_key - column};
#pragma unroll
  for (int j = 0; j < Traits::kTile / 8; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int key = 8 * j + e % 2;
      if (key < first[e / 2] || key >= last[e / 2]) s[4 * j + e] = -INFINITY;
    }
  }
}

/// Moves the running maximum, and the sums with it. `factor`: what O is multiplied by; `offset`: exponent of P is
/// S * scale + offset.
template <class Traits>
__device__ __forceinline__ void advance_maximum(const float (&scale)[2], const float (&s)[Traits::kTile / 2],
                                                RowState<Traits>& state, float (&factor)[2], float (&offset)[2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float chains[2] = {s[2 * i], s[2 * i + 4]};  // two chains of maxima: half the latency
#pragma unroll
    for (int j = 0; j < Traits::kTile / 8; ++j) {
      chains[j % 2] = fmaxf(chains[j % 2], fmaxf(s[4 * j + 2 * i], s[4 * j + 2 * i + 1]));
    }
    float top = fmaxf(chains[0], chains[1]);
    top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
    top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));
    // An integer maximum makes every rescale an exact power of two and P's rounding independent of the tiles' order.
    const float maximum = fmaxf(state.maximum[i], ceilf(top * scale[i]));
    factor[i] = ptx::exp2_approx(state.maximum[i] - maximum);
    offset[i] = static_cast<float>(combine::kProbabilityBits) - maximum;
    state.maximum[i] = maximum;
    state.sum[i] *= factor[i];
  }
}

/// P of the 16 tokens from 16 * group on: adds it up and leaves it in E4M3 as half of an A operand.
template <class Traits>
__device__ __forceinline__ void exponentiate(const float (&scale)[2], const float (&offset)[2], int group,
                                             const float (&s)[Traits::kTile / 2], float (&sum)[2],
                                             uint32_t& first_codes, uint32_t& second_codes) {
  float p[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int row = i % 4 / 2;
    p[i] = ptx::exp2_approx(fmaf(s[8 * group + i], scale[row], offset[row]));
  }
  sum[0] += p[0] + p[1];
  sum[1] += p[2] + p[3];
  sum[0] += p[4] + p[5];
  sum[1] += p[6] + p[7];
  first_codes = ptx::to_e4m3x4(p[0], p[1], p[4], p[5]);
  second_codes = ptx::to_e4m3x4(p[2], p[3], p[6], p[7]);
}

/// O = O * factor + P V, a chunk of columns a step, each into a fresh accumulator; `release` is called when V has been
/// read.
template <class Traits>
class ValueSteps {
 public:
  __device__ __forceinline__ ValueSteps(int stage, const uint32_t (&codes)[Traits::kTile / 32][4])
      : value_low_(ptx::descriptor_low(Traits::kValues, 16 * Traits::kHeadDim) + stage * (Traits::kTileBytes >> 4)),
        codes_(codes) {}

  template <class Release>
  __device__ __forceinline__ void run(const float (&factor)[2], float (&out)[Traits::kHeadDim / 2], Release release) {
    static_for<Traits::kBuffers>([&](auto chunk) { issue(chunk); });
    static_for<Traits::kChunks>([&](auto chunk) {
      constexpr int kChunk = decltype(chunk)::value;
      ptx::wgmma_wait<kChunk + Traits::kBuffers <= Traits::kChunks ? Traits::kBuffers - 1 : 0>();
      if constexpr (kChunk == Traits::kChunks - 1) release();
      add(chunk, factor, out);
      issue(std::integral_constant<int, kChunk + Traits::kBuffers>{});
    });
  }

 private:
  template <int kChunk>
  __device__ __forceinline__ auto& accumulator() {
    if constexpr (Traits::kBuffers > 1 && kChunk % 2 == 1) {
      return odd_;
    } else {
      return even_;
    }
  }

  template <int kChunk>
  __device__ __forceinline__ void issue(std::integral_constant<int, kChunk> /*chunk*/) {
    if constexpr (kChunk < Traits::kChunks) {
      ptx::wgmma_fence();
#pragma unroll
      for (int step = 0; step < Traits::kTile / 32; ++step) {
        const uint32_t low = value_low_ + Traits::chunk_begin(kChunk) + step * 2 * Traits::kHeadDim;
        ptx::wgmma(accumulator<kChunk>(), codes_[step], ptx::descriptor(low, 128), step > 0);
      }
      ptx::wgmma_commit();
    }
  }

  template <int kChunk>
  __device__ __forceinline__ void add(std::integral_constant<int, kChunk> /*chunk*/, const float (&factor)[2],
                                      float (&out)[Traits::kHeadDim / 2]) {
    auto& x = accumulator<kChunk>();
    ptx::pin(x);
#pragma unroll
    for (int i = 0; i < Traits::chunk_width(kChunk) / 2; ++i) {
      float& o = out[Traits::chunk_begin(kChunk) / 2 + i];
      o = fmaf(o, factor[i % 4 / 2], x[i]);
    }
  }

  uint32_t value_low_;
  const uint32_t (&codes_)[Traits::kTile / 32][4];
  float even_[Traits::kConfig.value_chunk / 2];
  float odd_[Traits::kBuffers > 1 ? Traits::kConfig.odd_value_chunk / 2 : 1];
};

/// The warpgroups of a CTA take turns in issuing QK, so that the softmax of one runs under the products of another.
template <class Traits>
__device__ __forceinline__ void wait_for_turn(int warpgroup) {
  ptx::named_barrier_sync(1 + warpgroup, 256);
}
template <class Traits>
__device__ __forceinline__ void pass_turn(int warpgroup) {
  ptx::named_barrier_arrive(1 + (warpgroup + 1) % Traits::kWarpgroups, 256);
}

/// All tiles of an item. The warpgroup's own rows see `own`; in the other tiles of the item it only keeps step.
template <class Traits>
__device__ __forceinline__ void attend(const Parameters& p, const Item& item, WarpgroupTiles own, const RowInfo* rows,
                                       int warpgroup, uint32_t query, SharedState<Traits>& shared,
                                       RingPosition<Traits::kStages>& slot, RowState<Traits>& state) {
  const auto release = [](uint64_t& barrier) {
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(ptx::shared_address(&barrier));
  };
  const bool capped = p.softcap_log2 > 0.0F;  // what the softcap leaves is in log2 units
  const float scale[2] = {capped ? 1.0F : rows[0].scale, capped ? 1.0F : rows[8].scale};
  const uint32_t query_low = ptx::descriptor_low(query, 128);
  const int first = own.first;
  const int last = own.last;
  const auto skip_to = [&](int tile, int end) {
    for (; tile < end; ++tile) {
      wait_for_turn<Traits>(warpgroup);
      pass_turn<Traits>(warpgroup);
      // A slot is given back only after it was filled, or the load warp would be a round ahead.
      ptx::mbarrier_wait(ptx::shared_address(&shared.key_full[slot.slot]), slot.parity);
      release(shared.key_empty[slot.slot]);
      ptx::mbarrier_wait(ptx::shared_address(&shared.value_full[slot.slot]), slot.parity);
      release(shared.value_empty[slot.slot]);
      slot.advance();
    }
  };
  const int tile_end = item.block.tile_end;
  skip_to(item.block.tile_begin, first < last ? first : tile_end);
#pragma unroll 1
  for (int tile = first; tile < last; ++tile) {
    float s[Traits::kTile / 2];
    wait_for_turn<Traits>(warpgroup);
    ptx::mbarrier_wait(ptx::shared_address(&shared.key_full[slot.slot]), slot.parity);
    issue_scores<Traits>(query_low, slot.slot, s);
    ptx::wgmma_wait<0>();
    ptx::pin(s);
    release(shared.key_empty[slot.slot]);
    pass_turn<Traits>(warpgroup);

    if (capped) apply_softcap<Traits>(p, rows, s);
    if (tile < own.full_first || tile >= own.full_last) apply_mask<Traits>(rows, tile * Traits::kTile, s);
    float factor[2];
    float offset[2];
    advance_maximum<Traits>(scale, s, state, factor, offset);
    uint32_t codes[Traits::kTile / 32][4];
#pragma unroll
    for (int group = 0; group < Traits::kTile / 16; ++group) {
      exponentiate<Traits>(scale, offset, group, s, state.sum, codes[group / 2][group % 2 * 2],
                           codes[group / 2][group % 2 * 2 + 1]);
    }
    ptx::mbarrier_wait(ptx::shared_address(&shared.value_full[slot.slot]), slot.parity);
    ValueSteps<Traits>(slot.slot, codes).run(factor, state.out, [&] { release(shared.value_empty[slot.slot]); });
    slot.advance();
  }
  if (first < last) skip_to(last, tile_end);
}

}  // namespace quaver::prefill_fp8
