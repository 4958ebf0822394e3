// What a math warpgroup does with one KV tile: S = Q K^T, online softmax with an integer running maximum, T = P V into
// a fresh accumulator, O = O * 2^k + T in FP32.
//
// A thread (row g = lane / 4 of its warp, t = lane % 4) holds rows g and g + 8 of its warp's 16: columns 8j + 2t,
// 8j + 2t + 1 of row g are accumulator registers 4j, 4j + 1, of row g + 8 registers 4j + 2, 4j + 3. `single`: two query
// rows; `split`: hi and lo part of one, joined to half as many registers. Converted in pairs, the registers of S are
// the A operand of P V because of the token order of V pages.
#pragma once

#include "attention/prefill_fp8/load.cuh"
#include "core/static_for.h"
#include "ptx/wgmma.cuh"

namespace quaver::prefill_fp8 {

/// Softmax state of a thread's rows and its columns of O.
template <class Traits>
struct RowState {
  float out[Traits::kOutputs];
  float maximum[Traits::kThreadRows];  ///< log2 units, an integer; finite, so that rows without a key need no branch
  float sum[Traits::kThreadRows];      ///< of this thread's tokens, times 2^kProbabilityBits
};

inline constexpr float kNoMaximum = -1e30F;

template <class Traits>
__device__ __forceinline__ void reset(RowState<Traits>& state) {
#pragma unroll
  for (float& x : state.out) x = 0.0F;
#pragma unroll
  for (int i = 0; i < Traits::kThreadRows; ++i) {
    state.maximum[i] = kNoMaximum;
    state.sum[i] = 0.0F;
  }
}

/// S of one tile and chunk of columns; runs until the caller waits. Steps of 32 columns are two core matrices of 128
/// bytes.
template <class Traits>
__device__ __forceinline__ void issue_scores(uint32_t query_low, int stage, int chunk, float (&s)[Traits::kTile / 2]) {
  constexpr uint32_t kKeyLow = ptx::descriptor_low(Traits::kKeys, 128);
  constexpr int kSteps = Traits::kScoreChunk / 32;
  const uint32_t key_low = kKeyLow + stage * (Traits::kTileBytes >> 4);
  ptx::wgmma_fence();
#pragma unroll
  for (int step = chunk * kSteps; step < (chunk + 1) * kSteps; ++step) {
    ptx::wgmma(s, ptx::descriptor(query_low + step * 16, 8 * Traits::kHeadDim),
               ptx::descriptor(key_low + step * 16, 8 * Traits::kHeadDim), step > chunk * kSteps);
  }
  ptx::wgmma_commit();
}

/// Adds the accumulators of one chunk of columns, in `split` hi + lo/16, to S.
template <class Traits>
__device__ __forceinline__ void add_scores(int chunk, float (&x)[Traits::kTile / 2], float (&s)[Traits::kScores]) {
  ptx::pin(x);
#pragma unroll
  for (int i = 0; i < Traits::kScores; ++i) {
    float part = x[i];
    if constexpr (Traits::kSplit) {
      const int high = i / 2 * 4 + i % 2;
      part = join_parts(x[high], x[high + 2]);
    }
    s[i] = chunk == 0 ? part : s[i] + part;
  }
}

/// S of one tile; `issued` is called when all its products are under way.
template <class Traits, class Issued>
__device__ __forceinline__ void compute_scores(uint32_t query_low, int stage, float (&s)[Traits::kScores],
                                               Issued issued) {
  constexpr int kChunks = Traits::kScoreChunks;
  if constexpr (!Traits::kSplit && kChunks == 1) {
    issue_scores<Traits>(query_low, stage, 0, s);
    issued();
    ptx::wgmma_wait<0>();
    ptx::pin(s);
  } else if constexpr (!Traits::kSplit || kChunks == 1) {  // no registers for a second accumulator, or no need
    float x[Traits::kTile / 2];
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      issue_scores<Traits>(query_low, stage, chunk, x);
      if (chunk == kChunks - 1) issued();
      ptx::wgmma_wait<0>();
      add_scores<Traits>(chunk, x, s);
    }
  } else {
    float even[Traits::kTile / 2];
    float odd[Traits::kTile / 2];
    issue_scores<Traits>(query_low, stage, 0, even);
    static_for<kChunks / 2>([&](auto pair) {
      constexpr int kChunk = 2 * decltype(pair)::value;
      issue_scores<Traits>(query_low, stage, kChunk + 1, odd);
      if constexpr (kChunk + 2 == kChunks) issued();
      ptx::wgmma_wait<1>();
      add_scores<Traits>(kChunk, even, s);
      if constexpr (kChunk + 2 < kChunks) issue_scores<Traits>(query_low, stage, kChunk + 2, even);
      ptx::wgmma_wait<kChunk + 2 < kChunks ? 1 : 0>();
      add_scores<Traits>(kChunk + 1, odd, s);
    });
  }
}

/// Logits in log2 units become cap * tanh(logit / cap); tanh(y) = 1 - 2 / (1 + 2^(2 y log2 e)).
template <class Traits>
__device__ __forceinline__ void apply_softcap(const Parameters& p, const RowInfo* rows, float (&s)[Traits::kScores]) {
  float inward[Traits::kThreadRows];
#pragma unroll
  for (int i = 0; i < Traits::kThreadRows; ++i) inward[i] = rows[8 * i].scale * p.softcap_inward;
#pragma unroll
  for (int i = 0; i < Traits::kScores; ++i) {
    const float x = s[i] * inward[Traits::thread_row(i)];
    s[i] = p.softcap_log2 * fmaf(-2.0F, ptx::reciprocal_approx(1.0F + ptx::exp2_approx(x)), 1.0F);
  }
}

template <class Traits>
__device__ __forceinline__ void apply_mask(const RowInfo* rows, int tile_token, float (&s)[Traits::kScores]) {
  const int column = tile_token + static_cast<int>(threadIdx.x) % 4 * 2;
  int first[Traits::kThreadRows];
  int last[Traits::kThreadRows];
#pragma unroll
  for (int i = 0; i < Traits::kThreadRows; ++i) first[i] = rows[8 * i].first_key - column;
#pragma unroll
  for (int i = 0; i < Traits::kThreadRows; ++i) last[i] = rows[8 * i].last_key - column;
#pragma unroll
  for (int j = 0; j < Traits::kTile / 8; ++j) {
#pragma unroll
    for (int e = 0; e < 2 * Traits::kThreadRows; ++e) {
      const int key = 8 * j + e % 2;
      if (key < first[e / 2] || key >= last[e / 2]) s[Traits::place(j, 0) + e] = -INFINITY;
    }
  }
}

/// Moves the running maximum, and the sums with it. `factor`: what O is multiplied by; `offset`: exponent of P is
/// S * scale + offset.
template <class Traits>
__device__ __forceinline__ void advance_maximum(const float (&scale)[Traits::kThreadRows],
                                                const float (&s)[Traits::kScores], RowState<Traits>& state,
                                                float (&factor)[Traits::kThreadRows],
                                                float (&offset)[Traits::kThreadRows]) {
  // Two chains of maxima a row, rows in turns: no step waits for the one before.
  float tops[Traits::kThreadRows][2];
#pragma unroll
  for (int j = 0; j < Traits::kTile / 8; ++j) {
#pragma unroll
    for (int e = 0; e < 2 * Traits::kThreadRows; ++e) {
      float& top = tops[e / 2][e % 2];
      const float x = s[Traits::place(j, 0) + e];
      top = j == 0 ? x : fmaxf(top, x);
    }
  }
#pragma unroll
  for (int i = 0; i < Traits::kThreadRows; ++i) {
    float top = fmaxf(tops[i][0], tops[i][1]);
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
__device__ __forceinline__ void exponentiate(const float (&scale)[Traits::kThreadRows],
                                             const float (&offset)[Traits::kThreadRows], int group,
                                             const float (&s)[Traits::kScores], float (&sum)[Traits::kThreadRows],
                                             uint32_t& first_codes, uint32_t& second_codes) {
  constexpr int kCount = 4 * Traits::kThreadRows;
  float p[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int row = Traits::thread_row(i);
    p[i] = ptx::exp2_approx(fmaf(s[kCount * group + i], scale[row], offset[row]));
  }
#pragma unroll
  for (int i = 0; i < kCount; i += 2) sum[Traits::thread_row(i)] += p[i] + p[i + 1];
  if constexpr (Traits::kSplit) {
    const SplitCodes codes = split_e4m3x4(p[0], p[1], p[2], p[3], ~0U);
    first_codes = codes.high;
    second_codes = codes.low;
  } else {
    first_codes = ptx::to_e4m3x4(p[0], p[1], p[4], p[5]);
    second_codes = ptx::to_e4m3x4(p[2], p[3], p[6], p[7]);
  }
}

/// O = O * factor + P V, a chunk of columns a step, each into a fresh accumulator; `release` is called when V has been
/// read.
template <class Traits>
class ValueSteps {
 public:
  /// `column`: first of the warpgroup's columns, which lie 16 bytes apart.
  __device__ __forceinline__ ValueSteps(int stage, int column, const uint32_t (&codes)[Traits::kTile / 32][4])
      : value_low_(ptx::descriptor_low(Traits::kValues, 16 * Traits::kHeadDim) + stage * (Traits::kTileBytes >> 4) +
                   column),
        codes_(codes) {}

  template <class Release>
  __device__ __forceinline__ void run(const float (&factor)[Traits::kThreadRows], float (&out)[Traits::kOutputs],
                                      Release release) {
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
  __device__ __forceinline__ void add(std::integral_constant<int, kChunk> /*chunk*/,
                                      const float (&factor)[Traits::kThreadRows], float (&out)[Traits::kOutputs]) {
    auto& x = accumulator<kChunk>();
    ptx::pin(x);
#pragma unroll
    for (int i = 0; i < Traits::chunk_width(kChunk) / 4 * Traits::kThreadRows; ++i) {
      float& o = out[Traits::chunk_begin(kChunk) / 4 * Traits::kThreadRows + i];
      if constexpr (Traits::kSplit) {
        const int high = i / 2 * 4 + i % 2;
        o = fmaf(o, factor[0], join_parts(x[high], x[high + 2]));
      } else {
        o = fmaf(o, factor[Traits::thread_row(i)], x[i]);
      }
    }
  }

  uint32_t value_low_;
  const uint32_t (&codes_)[Traits::kTile / 32][4];
  float even_[Traits::kConfig.value_chunk / 2];
  float odd_[Traits::kBuffers > 1 ? Traits::kConfig.odd_value_chunk / 2 : 1];
};

/// The warpgroups of a CTA take turns: a turn is PV of a tile (up to head dim 256) and QK of the next one, so that the
/// softmax of one runs under the products of another.
template <class Traits>
__device__ __forceinline__ void wait_for_turn(int warpgroup) {
  ptx::named_barrier_sync(1 + warpgroup, 256);
}
template <class Traits>
__device__ __forceinline__ void pass_turn(int warpgroup) {
  ptx::named_barrier_arrive(1 + (warpgroup + 1) % Traits::kWarpgroups, 256);
}

/// All tiles of an item. The warpgroup's own rows see `own`; in the other tiles of the item it only keeps step. An item
/// of n tiles has n + 1 turns.
template <class Traits>
__device__ __forceinline__ void attend(const Parameters& p, const Item& item, WarpgroupTiles own, const RowInfo* rows,
                                       int warpgroup, uint32_t query, SharedState<Traits>& shared,
                                       RingPosition<Traits::kStages>& slot, RowState<Traits>& state) {
  const auto wait = [](uint64_t& barrier, uint32_t parity) {
    ptx::mbarrier_wait(ptx::shared_address(&barrier), parity);
  };
  const auto release = [](uint64_t& barrier) {
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(ptx::shared_address(&barrier));
  };
  const bool capped = p.softcap_log2 > 0.0F;  // what the softcap leaves is in log2 units
  float scale[Traits::kThreadRows];
#pragma unroll
  for (int i = 0; i < Traits::kThreadRows; ++i) scale[i] = capped ? 1.0F : rows[8 * i].scale;
  const uint32_t query_low = ptx::descriptor_low(query, 128);
  const int first = own.first;
  const int last = own.last;
  const auto skip_to = [&](int tile, int end) {
    for (; tile < end; ++tile) {
      pass_turn<Traits>(warpgroup);
      // A slot is given back only after every lane saw it filled, or the load warp would be a round ahead of some.
      wait(shared.key_full[slot.slot], slot.parity);
      __syncwarp();
      release(shared.key_empty[slot.slot]);
      wait(shared.value_full[slot.slot], slot.parity);
      __syncwarp();
      release(shared.value_empty[slot.slot]);
      slot.advance();
      wait_for_turn<Traits>(warpgroup);
    }
  };
  const int tile_end = item.block.tile_end;
  wait_for_turn<Traits>(warpgroup);
  skip_to(item.block.tile_begin, first < last ? first : tile_end);
#pragma unroll 1
  for (int tile = first; tile < last; ++tile) {
    float s[Traits::kScores];
    wait(shared.key_full[slot.slot], slot.parity);
    compute_scores<Traits>(query_low, slot.slot, s, [&] {
      if constexpr (!Traits::kTurnHasScores) pass_turn<Traits>(warpgroup);
    });
    release(shared.key_empty[slot.slot]);
    if constexpr (Traits::kTurnHasScores) pass_turn<Traits>(warpgroup);

    if (capped) apply_softcap<Traits>(p, rows, s);
    if (tile < own.full_first || tile >= own.full_last) apply_mask<Traits>(rows, tile * Traits::kTile, s);
    float factor[Traits::kThreadRows];
    float offset[Traits::kThreadRows];
    advance_maximum<Traits>(scale, s, state, factor, offset);
    uint32_t codes[Traits::kTile / 32][4];
#pragma unroll
    for (int group = 0; group < Traits::kTile / 16; ++group) {
      exponentiate<Traits>(scale, offset, group, s, state.sum, codes[group / 2][group % 2 * 2],
                           codes[group / 2][group % 2 * 2 + 1]);
    }
    wait(shared.value_full[slot.slot], slot.parity);
    if constexpr (Traits::kTurnHasValues) wait_for_turn<Traits>(warpgroup);
    const int column = warpgroup % Traits::kColumnGroups * Traits::kValueColumns;
    ValueSteps<Traits>(slot.slot, column, codes).run(factor, state.out, [&] {
      release(shared.value_empty[slot.slot]);
    });
    slot.advance();
    if constexpr (!Traits::kTurnHasValues) wait_for_turn<Traits>(warpgroup);
  }
  if (first < last) skip_to(last, tile_end);
  pass_turn<Traits>(warpgroup);
}

}  // namespace quaver::prefill_fp8
