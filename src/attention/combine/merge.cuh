// The arithmetic that finishes a row: adding partial results in their order, the sink, normalisation, LSE.
// Shared by the decode kernel (uncut items; last part written) and the combine kernel, so both give the same bits.
#pragma once

#include <cuda_bf16.h>

#include "attention/combine/partials.h"
#include "attention/schedule/cut_list.h"
#include "attention/tiles.h"
#include "ptx/convert.cuh"

namespace quaver::combine {

inline constexpr float kLn2 = 0.69314718F;
inline constexpr float kLog2E = 1.44269504F;

/// Factor of O and LSE of a finished row.
struct RowResult {
  float scale = 0.0F;
  float lse = 0.0F;
};

/// `maximum` and `sum` over all keys; `query_head` for the sink. A row without a key or sink gets scale 0, LSE -inf; a
/// NaN in the sum makes both NaN.
__device__ __forceinline__ RowResult finish_row(const Output& output, float maximum, float sum, int sequence, int head,
                                                int query_head) {
  float reference = maximum;
  float scale = (output.v_scale == nullptr ? 1.0F : output.v_scale[head]) * output.v_descale.at(sequence, head);
  const float sink = output.sinks == nullptr ? -INFINITY : output.sinks[query_head] * kLog2E;
  if (sink != -INFINITY) {
    reference = fmaxf(maximum, ceilf(sink));
    const float shift = ptx::exp2_approx(maximum - reference);  // exact: both are integers
    sum = fmaf(sum, shift, ptx::exp2_approx(sink - reference + static_cast<float>(kProbabilityBits)));
    scale *= shift;
  }
  if (sum == 0.0F) return {.scale = 0.0F, .lse = -INFINITY};
  return {.scale = scale / sum, .lse = (__log2f(sum) + reference - static_cast<float>(kProbabilityBits)) * kLn2};
}

/// Writes a value of a row of O.
__device__ __forceinline__ void write_value(const Output& output, int64_t offset, float value) {
  if (output.out_f32) {
    static_cast<float*>(output.out)[offset] = value;
  } else {
    static_cast<__nv_bfloat16*>(output.out)[offset] = __float2bfloat16_rn(value);
  }
}

/// Writes two neighbouring values of a row of O.
__device__ __forceinline__ void write_pair(const Output& output, int64_t offset, float a, float b) {
  if (output.out_f32) {
    *reinterpret_cast<float2*>(static_cast<float*>(output.out) + offset) = make_float2(a, b);
  } else {
    *reinterpret_cast<__nv_bfloat162*>(static_cast<__nv_bfloat16*>(output.out) + offset) = __floats2bfloat162_rn(a, b);
  }
}

struct PartSum {
  float4 out = {0.0F, 0.0F, 0.0F, 0.0F};
  float maximum = -INFINITY;
  float sum = 0.0F;
};

/// Adds the parts [part, part + kCount) ∩ [0, num_parts) of four columns; all loads are in flight at once. Indices are
/// clamped, not predicated: predicated loads spilled 440 bytes. Maxima are integers, so every factor is an exact power
/// of two and the sum does not depend on kCount.
template <int kHeadDim, int kCount>
__device__ __forceinline__ void add_parts(const Partials& partials, schedule::PartSlots slots, int row, int column,
                                          int part, int num_parts, PartSum& total) {
  float2 max_sum[kCount];
  float4 out[kCount];
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    const int slot = slots.slot(min(part + k, num_parts - 1));
    const auto line = static_cast<uint32_t>(slot * partials.max_rows + row);
    max_sum[k] = __ldcg(partials.max_sum + line);
    out[k] = __ldcg(reinterpret_cast<const float4*>(partials.out + uint64_t{line} * kHeadDim + column));
  }
  float maximum = total.maximum;
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    if (part + k >= num_parts) max_sum[k].x = -INFINITY;
    maximum = fmaxf(maximum, max_sum[k].x);
  }
  const float reference = maximum == -INFINITY ? 0.0F : maximum;
  const auto add = [&](float old_factor, float factor, float4 values, float sum) {
    total.sum = fmaf(total.sum, old_factor, sum * factor);
    total.out.x = fmaf(total.out.x, old_factor, values.x * factor);
    total.out.y = fmaf(total.out.y, old_factor, values.y * factor);
    total.out.z = fmaf(total.out.z, old_factor, values.z * factor);
    total.out.w = fmaf(total.out.w, old_factor, values.w * factor);
  };
  const float old_factor = ptx::exp2_approx(total.maximum - reference);
  total.maximum = maximum;
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    add(k == 0 ? old_factor : 1.0F, ptx::exp2_approx(max_sum[k].x - reference), out[k], max_sum[k].y);
  }
}

/// One item whose parts are all written.
struct CutItem {
  schedule::PartSlots slots{};
  int num_parts = 0;
  int sequence = 0;
  int head = 0;
  int query_begin = 0;
  int rows = 0;
  int first_row = 0;  ///< of the kv head's rows in the sequence
};

/// Finishes four columns of one row: element = row * kHeadDim + column, column a multiple of 4. Up to kFew parts have
/// their loads in flight at once, of more parts kMany at a time.
template <int kHeadDim, int kFew, int kMany>
__device__ __forceinline__ void merge_parts(const Partials& partials, const Output& output, const CutItem& item,
                                            int element) {
  const int row = element / kHeadDim;
  const int column = element % kHeadDim;
  PartSum total;
  if (kFew < kMany && item.num_parts <= kFew) {
    add_parts<kHeadDim, kFew>(partials, item.slots, row, column, 0, item.num_parts, total);
  } else {
#pragma unroll 1
    for (int part = 0; part < item.num_parts; part += kMany) {
      add_parts<kHeadDim, kMany>(partials, item.slots, row, column, part, item.num_parts, total);
    }
  }
  const int64_t token = item.query_begin + tiles::row_token(item.first_row + row, output.group);
  const int query_head = item.head * output.group + tiles::row_head(item.first_row + row, output.group);
  const RowResult result = finish_row(output, total.maximum, total.sum, item.sequence, item.head, query_head);
  const int64_t offset = token * output.out_strides.token + query_head * output.out_strides.head + column;
  write_pair(output, offset, total.out.x * result.scale, total.out.y * result.scale);
  write_pair(output, offset + 2, total.out.z * result.scale, total.out.w * result.scale);
  if (column == 0 && output.lse != nullptr) {
    output.lse[token * output.lse_strides.token + query_head * output.lse_strides.head] = result.lse;
  }
}

}  // namespace quaver::combine
