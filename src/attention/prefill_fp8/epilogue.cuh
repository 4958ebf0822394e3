// The end of an item: rows are normalised and written.
#pragma once

#include "attention/combine/merge.cuh"
#include "attention/prefill_fp8/mainloop.cuh"

namespace quaver::prefill_fp8 {

/// Four words a lane, word i of lane t of a quad becomes word t of lane i: two exchange steps.
__device__ __forceinline__ void transpose_quad(uint32_t (&words)[4]) {
  const bool odd = threadIdx.x % 2 != 0;
  const bool upper = threadIdx.x % 4 >= 2;
  const uint32_t a = __shfl_xor_sync(kAllLanes, odd ? words[0] : words[1], 1);
  const uint32_t b = __shfl_xor_sync(kAllLanes, odd ? words[2] : words[3], 1);
  if (odd) {
    words[0] = a;
    words[2] = b;
  } else {
    words[1] = a;
    words[3] = b;
  }
  const uint32_t c = __shfl_xor_sync(kAllLanes, upper ? words[0] : words[2], 2);
  const uint32_t d = __shfl_xor_sync(kAllLanes, upper ? words[1] : words[3], 2);
  if (upper) {
    words[0] = c;
    words[1] = d;
  } else {
    words[2] = c;
    words[3] = d;
  }
}

__device__ __forceinline__ uint32_t to_bf16x2(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

/// Row i (0: lane / 4, 1: 8 rows further) of a thread; lanes of a quad hold the same row. `valid`: the row exists.
template <class Traits>
__device__ __forceinline__ void write_row(const Parameters& p, const Item& item, int row, bool valid, int i,
                                          const RowState<Traits>& state) {
  const int token = item.block.query_begin + tiles::row_token(row, p.group);
  const int query_head = item.head * p.group + tiles::row_head(row, p.group);
  float sum = state.sum[i];
  sum += __shfl_xor_sync(kAllLanes, sum, 1);
  sum += __shfl_xor_sync(kAllLanes, sum, 2);
  combine::RowResult result{};
  if (valid) result = combine::finish_row(p.output, state.maximum[i], sum, item.block.sequence, item.head, query_head);
  const auto t = static_cast<int>(threadIdx.x) % 4;
  const int64_t offset = token * p.output.out_strides.token + query_head * p.output.out_strides.head;
#pragma unroll
  for (int j = 0; j < Traits::kHeadDim / 8; j += 4) {
    if (p.output.out_f32) {
#pragma unroll
      for (int k = j; k < j + 4; ++k) {
        if (!valid) continue;
        combine::write_pair(p.output, offset + 8 * k + 2 * t, state.out[4 * k + 2 * i] * result.scale,
                            state.out[4 * k + 2 * i + 1] * result.scale);
      }
    } else {
      uint32_t words[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        words[k] =
            to_bf16x2(state.out[4 * (j + k) + 2 * i] * result.scale, state.out[4 * (j + k) + 2 * i + 1] * result.scale);
      }
      transpose_quad(words);
      if (valid) {
        *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(p.output.out) + offset + 8 * (j + t)) =
            make_uint4(words[0], words[1], words[2], words[3]);
      }
    }
  }
  if (valid && t == 0 && p.output.lse != nullptr) {
    p.output.lse[token * p.output.lse_strides.token + query_head * p.output.lse_strides.head] = result.lse;
  }
}

}  // namespace quaver::prefill_fp8
