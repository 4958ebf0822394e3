// The end of an item: rows are normalised and written; those of a part of a block go to the workspace as they are.
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

/// Where a row goes: the output, or the workspace when its item is a part of a block.
struct RowTarget {
  void* values = nullptr;
  bool f32 = false;
  float scale = 1.0F;  ///< of the values
};

/// The thread that writes what belongs to a whole row.
__device__ __forceinline__ bool writes_row_state(int column) {
  return threadIdx.x % 4 == 0 && column == 0;
}

/// Row `row` of a part, for the combine kernel. If it sees none of the part's keys it has kNoMaximum and weighs
/// nothing.
__device__ __forceinline__ RowTarget part_target(const Parameters& p, const Item& item, int row, int column,
                                                 int head_dim, float maximum, float sum) {
  const schedule::RowBlock& block = item.block;
  const int slot = block.head_slot(item.head) + block.part;
  const int64_t line = int64_t{slot} * p.partials.max_rows + (row - block.first_row);
  if (writes_row_state(column)) __stcg(p.partials.max_sum + line, make_float2(maximum, sum));
  return {.values = p.partials.out + line * head_dim + column, .f32 = true};
}

__device__ __forceinline__ RowTarget output_target(const Parameters& p, const Item& item, int row, int column,
                                                   float maximum, float sum) {
  const int token = item.block.query_begin + tiles::row_token(row, p.group);
  const int query_head = item.head * p.group + tiles::row_head(row, p.group);
  const combine::RowResult result =
      combine::finish_row(p.output, maximum, sum, item.block.sequence, item.head, query_head);
  if (writes_row_state(column) && p.output.lse != nullptr) {
    p.output.lse[token * p.output.lse_strides.token + query_head * p.output.lse_strides.head] = result.lse;
  }
  const int64_t offset = token * p.output.out_strides.token + query_head * p.output.out_strides.head + column;
  if (p.output.out_f32) {
    return {.values = static_cast<float*>(p.output.out) + offset, .f32 = true, .scale = result.scale};
  }
  return {.values = static_cast<__nv_bfloat16*>(p.output.out) + offset, .scale = result.scale};
}

/// Row i of a thread (`single` has a second one, 8 rows further), from `column` on; lanes of a quad hold the same row.
/// `valid`: the row exists.
template <class Traits>
__device__ __forceinline__ void write_row(const Parameters& p, const Item& item, int row, int column, bool valid, int i,
                                          const RowState<Traits>& state) {
  float sum = state.sum[i];
  sum += __shfl_xor_sync(kAllLanes, sum, 1);
  sum += __shfl_xor_sync(kAllLanes, sum, 2);
  RowTarget target;
  if (valid && item.block.num_parts > 1) {
    target = part_target(p, item, row, column, Traits::kHeadDim, state.maximum[i], sum);
  } else if (valid) {
    target = output_target(p, item, row, column, state.maximum[i], sum);
  }
  const auto t = static_cast<int>(threadIdx.x) % 4;
  if (__any_sync(kAllLanes, target.f32)) {
    auto* values = static_cast<float*>(target.values);
#pragma unroll
    for (int j = 0; j < Traits::kValueColumns / 8; ++j) {
      if (!valid) continue;
      __stcg(reinterpret_cast<float2*>(values + 8 * j + 2 * t),
             make_float2(state.out[Traits::place(j, i)] * target.scale,
                         state.out[Traits::place(j, i) + 1] * target.scale));
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < Traits::kValueColumns / 8; j += 4) {
    uint32_t words[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      words[k] = to_bf16x2(state.out[Traits::place(j + k, i)] * target.scale,
                           state.out[Traits::place(j + k, i) + 1] * target.scale);
    }
    transpose_quad(words);
    if (valid) {
      *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(target.values) + 8 * (j + t)) =
          make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
}

}  // namespace quaver::prefill_fp8
