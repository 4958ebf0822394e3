// The end of an item: rows are normalised and written; those of a part of a block go to the workspace as they are.
#pragma once

#include "attention/combine/merge.cuh"
#include "attention/prefill_fp8/mainloop.cuh"
#include "ptx/stmatrix.cuh"

namespace quaver::prefill_fp8 {

__device__ __forceinline__ uint32_t to_bf16x2(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

/// Where a row goes: the output, or the workspace when its item is a part of a block; null if there is no such row.
struct RowTarget {
  void* values = nullptr;
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
  return {.values = p.partials.out + line * head_dim + column};
}

/// `token` of the call, `group_head` of the kv head's group.
__device__ __forceinline__ RowTarget output_target(const Parameters& p, const Item& item, int token, int group_head,
                                                   int column, float maximum, float sum) {
  const int query_head = item.head * p.group + group_head;
  const combine::RowResult result =
      combine::finish_row(p.output, maximum, sum, item.block.sequence, item.head, query_head);
  if (writes_row_state(column) && p.output.lse != nullptr) {
    p.output.lse[token * p.output.lse_strides.token + query_head * p.output.lse_strides.head] = result.lse;
  }
  const int64_t offset = token * p.output.out_strides.token + query_head * p.output.out_strides.head + column;
  if (p.output.out_f32) return {.values = static_cast<float*>(p.output.out) + offset, .scale = result.scale};
  return {.values = static_cast<__nv_bfloat16*>(p.output.out) + offset, .scale = result.scale};
}

/// Two neighbours of FP32 at a time; lanes of a quad hold the same row.
template <class Traits>
__device__ __forceinline__ void store_f32(const RowTarget (&targets)[Traits::kThreadRows],
                                          const float (&out)[Traits::kOutputs]) {
#pragma unroll
  for (int i = 0; i < Traits::kThreadRows; ++i) {
    if (targets[i].values == nullptr) continue;
    auto* values = static_cast<float*>(targets[i].values) + threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < Traits::kValueColumns / 8; ++j) {
      const int place = Traits::place(j, i);
      __stcg(reinterpret_cast<float2*>(values + 8 * j),
             make_float2(out[place] * targets[i].scale, out[place + 1] * targets[i].scale));
    }
  }
}

/// BF16 through the warp's `staging`, so that a store has 128 (or 64) bytes of a row side by side.
template <class Traits>
__device__ __forceinline__ void store_bf16(const RowTarget (&targets)[Traits::kThreadRows], uint8_t* staging,
                                           const float (&out)[Traits::kOutputs]) {
  constexpr int kWidth = Traits::kStagedColumns;
  constexpr int kPieces = kWidth / 8;                      // of 16 bytes, in a staged row
  constexpr int kStoreRows = 32 / kPieces;                 // of one store
  constexpr int kStores = Traits::kWarpRows / kStoreRows;  // for the warp's rows
  const auto staged = [](int row, int piece) {             // eight rows of a piece lie in eight groups of banks
    return row * kWidth * 2 + (piece ^ (kPieces == 8 ? row % 8 : row / 2 % 4)) * 16;
  };
  const auto lane = static_cast<int>(threadIdx.x) % 32;
  const int piece = lane % kPieces;  // what this lane stores of the rows first + kStoreRows * k
  const int first = lane / kPieces;
  uint4* destinations[kStores];
#pragma unroll
  for (int k = 0; k < kStores; ++k) {
    const auto mine = reinterpret_cast<uint64_t>(targets[k * kStoreRows / 8].values);
    const uint64_t values = __shfl_sync(kAllLanes, mine, (first + kStoreRows * k) % 8 * 4);
    destinations[k] = values == 0 ? nullptr : reinterpret_cast<uint4*>(values) + piece;
  }
  const int matrix = lane / 8;  // the lane gives the address of row lane % 8 of it
  const int matrix_row = matrix % Traits::kThreadRows * 8 + lane % 8;
#pragma unroll
  for (int begin = 0; begin < Traits::kValueColumns; begin += kWidth) {
#pragma unroll
    for (int block = 0; block < kPieces; block += 4 / Traits::kThreadRows) {
      uint32_t words[4];
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const int i = m % Traits::kThreadRows;
        const int place = Traits::place(begin / 8 + block + m / Traits::kThreadRows, i);
        words[m] = to_bf16x2(out[place] * targets[i].scale, out[place + 1] * targets[i].scale);
      }
      ptx::stmatrix_x4(ptx::shared_address(staging) + staged(matrix_row, block + matrix / Traits::kThreadRows), words);
    }
    __syncwarp();
#pragma unroll
    for (int k = 0; k < kStores; ++k) {
      const auto* from = reinterpret_cast<const uint4*>(staging + staged(first + kStoreRows * k, piece));
      if (destinations[k] != nullptr) destinations[k][begin / 8] = *from;
    }
    __syncwarp();
  }
}

/// A warp's rows of O, `row` + 8i the rows of a thread; lanes of a quad hold the same ones.
template <class Traits>
__device__ __forceinline__ void write_rows(const Parameters& p, const Item& item, int row, int first_token,
                                           const RowPlace (&places)[Traits::kThreadRows], int column, uint8_t* staging,
                                           const RowState<Traits>& state) {
  const bool is_part = item.block.num_parts > 1;
  RowTarget targets[Traits::kThreadRows];
#pragma unroll
  for (int i = 0; i < Traits::kThreadRows; ++i) {
    float sum = state.sum[i];
    sum += __shfl_xor_sync(kAllLanes, sum, 1);
    sum += __shfl_xor_sync(kAllLanes, sum, 2);
    if (row + 8 * i >= item.block.query_len * p.group) continue;
    if (is_part) {
      targets[i] = part_target(p, item, row + 8 * i, column, Traits::kHeadDim, state.maximum[i], sum);
    } else {
      targets[i] = output_target(p, item, item.block.query_begin + first_token + places[i].token, places[i].head,
                                 column, state.maximum[i], sum);
    }
  }
  if (is_part || p.output.out_f32) {
    store_f32<Traits>(targets, state.out);
  } else {
    store_bf16<Traits>(targets, staging, state.out);
  }
}

}  // namespace quaver::prefill_fp8
