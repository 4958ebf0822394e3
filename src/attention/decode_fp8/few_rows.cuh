// Up to 8 query rows: tokens along M. S^T = K Q^T and O^T = V^T P^T with K and V from the ring as A operands; the hi
// and lo parts of a row are neighbouring columns of a WGMMA with n = 8 (4 rows) or 16 (8 rows).
//
// A thread (g = lane / 4, t = lane % 4 of warp w) holds rows 4j + t: of S^T the tokens 64m + 16w + 8h + g, of O^T the
// columns 64c + 16w + 8h + g; hi and lo are accumulator registers 4j + 2h and 4j + 2h + 1. All four warps share the
// softmax: maxima and P cross them through shared memory.
#pragma once

#include "attention/decode_fp8/few_rows_query.cuh"
#include "attention/decode_fp8/load.cuh"
#include "ptx/wgmma_shared.cuh"

namespace quaver::decode_fp8::few_rows {

template <class Traits>
__device__ __forceinline__ void sync_warps() {
  ptx::named_barrier_sync(1, Traits::kConsumers);
}

template <class Traits>
struct RowState {
  float out[Traits::kValueBlocks][Traits::kRowsPerThread][2];
  float maximum[Traits::kRowsPerThread];  ///< log2 units, rounded up to an integer
  float sum[Traits::kRowsPerThread];      ///< of this thread's tokens, times 2^kProbabilityBits
};

/// S of one tile in FP32: s[m][j][h].
template <class Traits>
__device__ __forceinline__ void compute_scores(uint32_t query, uint32_t key_tile,
                                               float (&s)[Traits::kTokenBlocks][Traits::kRowsPerThread][2]) {
  constexpr int kSteps = Traits::kScoreChunk / 32;
  constexpr int kChunks = Traits::kScoreChunks;
  float accumulator[kChunks][Traits::kTokenBlocks][Traits::kColumns / 2];
  ptx::wgmma_fence();
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk) {
#pragma unroll
    for (int m = 0; m < Traits::kTokenBlocks; ++m) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {  // 32 columns of the head dim: two core matrices of 128 bytes
        const uint32_t offset = (chunk * kSteps + step) * 256;
        const uint32_t keys = key_tile + m * 64 * Traits::kHeadDim + offset;
        ptx::wgmma(accumulator[chunk][m], ptx::matrix_descriptor(keys, 128, 8 * Traits::kHeadDim),
                   ptx::matrix_descriptor(query + offset, 128, 8 * Traits::kHeadDim), step > 0);
      }
    }
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
#pragma unroll
  for (int m = 0; m < Traits::kTokenBlocks; ++m) {
#pragma unroll
    for (int j = 0; j < Traits::kRowsPerThread; ++j) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float sum = 0.0F;
#pragma unroll
        for (int chunk = 0; chunk < kChunks; ++chunk) {
          const float* x = accumulator[chunk][m] + 4 * j + 2 * h;
          const float part = join_parts(x[0], x[1]);
          sum = chunk == 0 ? part : sum + part;
        }
        s[m][j][h] = sum;
      }
    }
  }
}

/// Logits in log2 units, softcapped and masked.
template <class Traits>
__device__ __forceinline__ void scale_and_mask(const Parameters& p, const QueryRows<Traits>& rows, int tile_token,
                                               float (&s)[Traits::kTokenBlocks][Traits::kRowsPerThread][2]) {
#pragma unroll
  for (auto& block : s) {
#pragma unroll
    for (int j = 0; j < Traits::kRowsPerThread; ++j) {
#pragma unroll
      for (float& x : block[j]) x *= rows.scale[j];
    }
  }
  if (p.softcap_log2 > 0.0F) {  // cap * tanh(x / cap), tanh(y) = 1 - 2 / (1 + 2^(2 y log2 e))
    const float inward = 2.0F * 1.44269504F / p.softcap_log2;
#pragma unroll
    for (auto& block : s) {
#pragma unroll
      for (auto& pair : block) {
#pragma unroll
        for (float& x : pair) {
          x = p.softcap_log2 * fmaf(-2.0F, ptx::reciprocal_approx(1.0F + ptx::exp2_approx(x * inward)), 1.0F);
        }
      }
    }
  }
  if (tile_token < rows.all_first || tile_token + Traits::kTile > rows.all_last) {
    const int thread = static_cast<int>(threadIdx.x);
    const int token = tile_token + thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
    for (int m = 0; m < Traits::kTokenBlocks; ++m) {
#pragma unroll
      for (int j = 0; j < Traits::kRowsPerThread; ++j) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int key = token + 64 * m + 8 * h;
          if (key < rows.first_key[j] || key >= rows.last_key[j]) s[m][j][h] = -INFINITY;
        }
      }
    }
  }
}

/// Updates the running maxima and sums, writes P^T (columns hi, lo of a row) to shared memory and leaves the factors of
/// O. Two barriers of the warps: maxima are exchanged, P is complete.
template <class Traits>
__device__ __forceinline__ void softmax(SharedState<Traits>& shared, uint32_t low_part_mask, uint8_t* probabilities,
                                        float (&s)[Traits::kTokenBlocks][Traits::kRowsPerThread][2],
                                        RowState<Traits>& state, float (&factor)[Traits::kRowsPerThread]) {
  const auto lane = static_cast<int>(threadIdx.x) % 32;
  const auto warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4;
  const int t = lane % 4;
#pragma unroll
  for (int j = 0; j < Traits::kRowsPerThread; ++j) {
    float maximum = fmaxf(s[0][j][0], s[0][j][1]);
#pragma unroll
    for (int m = 1; m < Traits::kTokenBlocks; ++m) maximum = fmaxf(maximum, fmaxf(s[m][j][0], s[m][j][1]));
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) {
      maximum = fmaxf(maximum, __shfl_xor_sync(kAllLanes, maximum, distance));
    }
    if (g == 0) shared.of_warps[4 * j + t][warp] = maximum;
  }
  sync_warps<Traits>();
  // Words of four tokens g, g + 1, g + 8, g + 9 (the order of V pages): lanes of even g make those of the hi parts.
  const unsigned selector = g % 2 == 0 ? 0x5140 : 0x3726;
#pragma unroll
  for (int j = 0; j < Traits::kRowsPerThread; ++j) {
    const float4 of_warps = *reinterpret_cast<const float4*>(shared.of_warps[4 * j + t]);
    // An integer maximum makes every rescale an exact power of two and the rounding of P independent of the tiles'
    // order.
    const float maximum =
        ceilf(fmaxf(state.maximum[j], fmaxf(fmaxf(of_warps.x, of_warps.y), fmaxf(of_warps.z, of_warps.w))));
    const float reference = maximum == -INFINITY ? 0.0F : maximum;
    factor[j] = ptx::exp2_approx(state.maximum[j] - reference);
    state.maximum[j] = maximum;
    const float shift = reference - static_cast<float>(combine::kProbabilityBits);
    float sum = 0.0F;
#pragma unroll
    for (int m = 0; m < Traits::kTokenBlocks; ++m) {
      const float a = ptx::exp2_approx(s[m][j][0] - shift);
      const float b = ptx::exp2_approx(s[m][j][1] - shift);
      sum += a;
      sum += b;
      const uint32_t own = split_e4m3x2(a, b, low_part_mask);
      const uint32_t word = __byte_perm(own, __shfl_xor_sync(kAllLanes, own, 4), selector);
      *reinterpret_cast<uint32_t*>(probabilities + ((4 * m + warp) * Traits::kColumns + 8 * j + 2 * t + g % 2) * 16 +
                                   4 * (g / 2)) = word;
    }
    state.sum[j] = fmaf(state.sum[j], factor[j], sum);
  }
  ptx::fence_proxy_async_shared();
  sync_warps<Traits>();
}

/// O = O * factor + P V, into fresh accumulators.
template <class Traits>
__device__ __forceinline__ void accumulate_values(uint32_t value_tile, uint32_t probabilities,
                                                  const float (&factor)[Traits::kRowsPerThread],
                                                  RowState<Traits>& state) {
  float accumulator[Traits::kValueBlocks][Traits::kColumns / 2];
  ptx::wgmma_fence();
#pragma unroll
  for (int c = 0; c < Traits::kValueBlocks; ++c) {
#pragma unroll
    for (int k = 0; k < Traits::kTile / 32; ++k) {
      const uint32_t values = value_tile + c * 64 * 16 + k * 32 * Traits::kHeadDim;
      ptx::wgmma(accumulator[c], ptx::matrix_descriptor(values, 16 * Traits::kHeadDim, 128),
                 ptx::matrix_descriptor(probabilities + k * 32 * Traits::kColumns, 16 * Traits::kColumns, 128), k > 0);
    }
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
#pragma unroll
  for (int c = 0; c < Traits::kValueBlocks; ++c) {
#pragma unroll
    for (int j = 0; j < Traits::kRowsPerThread; ++j) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float* x = accumulator[c] + 4 * j + 2 * h;
        state.out[c][j][h] = fmaf(state.out[c][j][h], factor[j], join_parts(x[0], x[1]));
      }
    }
  }
}

/// All tiles of one item.
template <class Traits>
__device__ __forceinline__ void attend(const Parameters& p, const WorkItem& item, const QueryRows<Traits>& rows,
                                       SharedState<Traits>& shared, uint32_t query, uint8_t* probabilities,
                                       uint8_t* ring, RingPosition<Traits::kRingSlots>& tile_slot,
                                       RowState<Traits>& state) {
  const auto wait_full = [&] {
    ptx::mbarrier_wait(ptx::shared_address(&shared.tile_full[tile_slot.slot]), tile_slot.parity);
  };
  const auto release = [&] {
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(ptx::shared_address(&shared.tile_empty[tile_slot.slot]));
    tile_slot.advance();
  };
#pragma unroll
  for (auto& block : state.out) {
#pragma unroll
    for (auto& pair : block) pair[0] = pair[1] = 0.0F;
  }
#pragma unroll
  for (int j = 0; j < Traits::kRowsPerThread; ++j) {
    state.maximum[j] = -INFINITY;
    state.sum[j] = 0.0F;
  }
  const int first_key = item.first_key;
  const int kv_len = item.kv_len;
  int tile_token = item.tile_begin * Traits::kTile;
  for (int tiles = item.tile_end - item.tile_begin; tiles > 0; --tiles, tile_token += Traits::kTile) {
    float s[Traits::kTokenBlocks][Traits::kRowsPerThread][2];
    float factor[Traits::kRowsPerThread];
    wait_full();
    compute_scores<Traits>(query, ptx::shared_address(ring + tile_slot.slot * Traits::kSlotBytes), s);
    release();
    scale_and_mask<Traits>(p, rows, tile_token, s);

    uint8_t* values = ring + tile_slot.slot * Traits::kSlotBytes;
    const bool edge = tile_token < first_key || tile_token + Traits::kTile > kv_len;
    if (edge) {
      wait_full();
      clear_unseen_values<Traits::kTile, Traits::kHeadDim, 128>(values, 0, Traits::kHeadDim, first_key - tile_token,
                                                                kv_len - tile_token);
    }
    softmax<Traits>(shared, p.low_part_mask, probabilities, s, state, factor);
    if (!edge) wait_full();
    accumulate_values<Traits>(ptx::shared_address(values), ptx::shared_address(probabilities), factor, state);
    release();
  }
}

/// Adds up the sums of the lanes and warps that share a row. Before any thread reads `of_warps` of the next item's
/// first tile, all have passed a barrier.
template <class Traits>
__device__ __forceinline__ void add_sums(SharedState<Traits>& shared, RowState<Traits>& state) {
  const auto lane = static_cast<int>(threadIdx.x) % 32;
  const auto warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int j = 0; j < Traits::kRowsPerThread; ++j) {
    float sum = state.sum[j];
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) sum += __shfl_xor_sync(kAllLanes, sum, distance);
    if (lane / 4 == 0) shared.of_warps[4 * j + lane % 4][warp] = sum;
  }
  sync_warps<Traits>();
#pragma unroll
  for (int j = 0; j < Traits::kRowsPerThread; ++j) {
    const float4 sums = *reinterpret_cast<const float4*>(shared.of_warps[4 * j + lane % 4]);
    state.sum[j] = (sums.x + sums.y) + (sums.z + sums.w);
  }
}

/// Calls `write(c, h, column)` for the columns of O that the thread holds.
template <class Traits, class Write>
__device__ __forceinline__ void for_columns(Write&& write) {
  const int thread = static_cast<int>(threadIdx.x);
  const int first = thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
  for (int c = 0; c < Traits::kValueBlocks; ++c) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int column = 64 * c + 8 * h + first;
      if (Traits::kHeadDim % 64 == 0 || column < Traits::kHeadDim) write(c, h, column);
    }
  }
}

/// Writes O and LSE of an uncut item, or a part of a cut one.
template <class Traits>
__device__ __forceinline__ void write_item(const Parameters& p, const WorkItem& item, SharedState<Traits>& shared,
                                           RowState<Traits>& state) {
  add_sums<Traits>(shared, state);
  const bool first_of_row = threadIdx.x < 4;
#pragma unroll
  for (int j = 0; j < Traits::kRowsPerThread; ++j) {
    const int row = 4 * j + static_cast<int>(threadIdx.x) % 4;
    if (row >= item.rows) break;
    if (item.num_parts == 1) {
      const int64_t token = item.query_begin + tiles::row_token(row, p.shape.group);
      const int query_head = item.head * p.shape.group + tiles::row_head(row, p.shape.group);
      const combine::RowResult result =
          combine::finish_row(p.output, state.maximum[j], state.sum[j], item.sequence, item.head, query_head);
      const int64_t offset = token * p.output.out_strides.token + query_head * p.output.out_strides.head;
      for_columns<Traits>([&](int c, int h, int column) {
        combine::write_value(p.output, offset + column, state.out[c][j][h] * result.scale);
      });
      if (first_of_row && p.output.lse != nullptr) {
        p.output.lse[token * p.output.lse_strides.token + query_head * p.output.lse_strides.head] = result.lse;
      }
    } else {
      const schedule::PartSlots slots{.first = item.first_slot, .rest = item.rest_slot};
      const int64_t line = static_cast<int64_t>(slots.slot(item.part)) * p.partials.max_rows + row;
      float* out = p.partials.out + line * Traits::kHeadDim;
      for_columns<Traits>([&](int c, int h, int column) { __stcg(out + column, state.out[c][j][h]); });
      if (first_of_row) __stcg(p.partials.max_sum + line, make_float2(state.maximum[j], state.sum[j]));
    }
  }
}

}  // namespace quaver::decode_fp8::few_rows
