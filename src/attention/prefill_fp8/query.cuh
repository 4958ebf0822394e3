// Q of the next item in shared memory, made by three warps beside the math warpgroups: BF16 rows become E4M3, or hi and
// lo/16 both in E4M3, with one power-of-two scale a row.
#pragma once

#include <cuda_bf16.h>

#include <cfloat>

#include "attention/kernel_parts.cuh"
#include "attention/prefill_fp8/params.h"
#include "attention/prefill_fp8/traits.h"
#include "ptx/barrier.cuh"
#include "ptx/convert.cuh"

namespace quaver::prefill_fp8 {

__device__ __forceinline__ float2 to_float2(uint32_t pair) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pair));
}

/// Largest magnitude of eight BF16 values and `largest`, pairwise.
__device__ __forceinline__ __nv_bfloat162 max_magnitude(__nv_bfloat162 largest, const uint4& values) {
  const auto* pairs = reinterpret_cast<const __nv_bfloat162*>(&values);
#pragma unroll
  for (int i = 0; i < 4; ++i) largest = __hmax2(largest, __habs2(pairs[i]));
  return largest;
}

/// Eight BF16 values times `factor` as E4M3.
__device__ __forceinline__ uint2 quantize(const uint4& values, float factor) {
  const float2 a = to_float2(values.x);
  const float2 b = to_float2(values.y);
  const float2 c = to_float2(values.z);
  const float2 d = to_float2(values.w);
  return make_uint2(ptx::to_e4m3x4(a.x * factor, a.y * factor, b.x * factor, b.y * factor),
                    ptx::to_e4m3x4(c.x * factor, c.y * factor, d.x * factor, d.y * factor));
}

/// Sixteen columns of a row to shared memory.
template <class Traits>
__device__ __forceinline__ void store_codes(const uint4& first, const uint4& second, float factor,
                                            uint8_t* destination) {
  if constexpr (Traits::kSplit) {
    SplitCodes codes[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4& values = i < 2 ? first : second;
      const float2 ab = to_float2(i % 2 == 0 ? values.x : values.z);
      const float2 cd = to_float2(i % 2 == 0 ? values.y : values.w);
      codes[i] = split_e4m3x4(ab.x * factor, ab.y * factor, cd.x * factor, cd.y * factor, ~0U);
    }
    *reinterpret_cast<uint4*>(destination) = make_uint4(codes[0].high, codes[1].high, codes[2].high, codes[3].high);
    *reinterpret_cast<uint4*>(destination + 8 * Traits::kHeadDim) =
        make_uint4(codes[0].low, codes[1].low, codes[2].low, codes[3].low);
  } else {
    const uint2 low = quantize(first, factor);
    const uint2 high = quantize(second, factor);
    *reinterpret_cast<uint4*>(destination) = make_uint4(low.x, low.y, high.x, high.y);
  }
}

/// Logits in log2 units of an S that was made with Q divided by `query_scale`.
__device__ __forceinline__ float logit_scale(const Parameters& p, const Item& item, float query_scale) {
  float scale = p.scale_log2 * query_scale;
  if (p.k_scale != nullptr) scale *= p.k_scale[item.head];
  return scale * (p.q_descale.at(item.block.sequence, item.head) * p.k_descale.at(item.block.sequence, item.head));
}

[[nodiscard]] __device__ __forceinline__ tiles::VisibleKeys visible_keys(const Parameters& p,
                                                                         const schedule::RowBlock& block,
                                                                         const schedule::TokenRange& tokens) {
  return schedule::token_keys(p.mask, block.kv_len, block.query_len, tokens,
                              p.span_ends == nullptr ? nullptr : p.span_ends + block.query_begin);
}

/// The tiles that the rows of each math warpgroup see; one lane a group of rows.
template <class Traits>
__device__ __forceinline__ void write_tiles(const Parameters& p, const Item& item, int row_group,
                                            QueryInfo<Traits>& info) {
  const schedule::RowBlock& block = item.block;
  const schedule::TokenRange tokens = schedule::row_tokens(
      p.group, block.query_len, block.first_row + row_group * Traits::kWarpgroupRows, Traits::kWarpgroupRows);
  const tiles::TileRange range = tiles::tile_range(visible_keys(p, block, tokens), Traits::kTile);
  info.tiles[row_group] = {.first = max(static_cast<int>(range.first), block.tile_begin),
                           .full_first = static_cast<int>(range.full_first),
                           .full_last = static_cast<int>(range.full_last),
                           .last = min(static_cast<int>(range.last), block.tile_end)};
}

/// One Q warp's share of an item: eight rows at a time, four lanes a row, 16 columns a lane and step. The second pass
/// reads the row again (from L1) instead of holding it: the load warpgroup has few registers.
template <class Traits>
__device__ __forceinline__ void load_query(const Parameters& p, const Item& item, uint8_t* query,
                                           QueryInfo<Traits>& info) {
  constexpr int kSteps = (Traits::kHeadDim + 63) / 64;
  const auto lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32 - Traits::kMathWarps - 1;
  const int first_column = lane % 4 * 16;
  if (warp == 0 && lane < Traits::kRowGroups) write_tiles<Traits>(p, item, lane, info);
  const int first_token = tiles::row_token(item.block.first_row, p.group);
  if (warp == 0 && lane == 0) info.first_token = first_token;
  const int last_row = item.block.query_len * p.group - 1;  // rows past it repeat it; they reach no result
  for (int rows = warp * 8; rows < Traits::kRows; rows += Traits::kQueryWarps * 8) {
    const int row = min(item.block.first_row + rows + lane / 4, last_row);
    const int token = tiles::row_token(row, p.group);
    const int head = tiles::row_head(row, p.group);
    const auto* source =
        reinterpret_cast<const uint4*>(p.q + (item.block.query_begin + int64_t{token}) * p.q_strides.token +
                                       (item.head * p.group + head) * p.q_strides.head + first_column);
    __nv_bfloat162 pair = __float2bfloat162_rn(0.0F);
#pragma unroll 4
    for (int i = 0; i < kSteps; ++i) {
      if (first_column + 64 * i >= Traits::kHeadDim) break;
      pair = max_magnitude(max_magnitude(pair, __ldg(source + 8 * i)), __ldg(source + 8 * i + 1));
    }
    float largest = fmaxf(__low2float(pair), __high2float(pair));
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFU, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFU, largest, 2));
    const int exponent = query_exponent(largest);
    const float scale = logit_scale(p, item, __int_as_float((exponent + 127) << 23));
    // The softmax wants a positive factor (it scales after the maximum; 0 * -inf is NaN): Q takes the sign.
    const float factor = copysignf(__int_as_float((127 - exponent) << 23), scale);
    if (lane % 4 == 0) {
      const tiles::KeyRange keys = visible_keys(p, item.block, {.first = token, .last = token + 1}).any;
      info.rows[rows + lane / 4] = {.scale = scale == 0.0F ? FLT_MIN : fabsf(scale),
                                    .first_key = static_cast<int>(keys.first),
                                    .last_key = static_cast<int>(keys.last),
                                    .place = {static_cast<uint16_t>(token - first_token), static_cast<uint16_t>(head)}};
    }
    uint8_t* destination =
        query + rows * (2 / Traits::kThreadRows) * Traits::kHeadDim + first_column * 8 + lane / 4 * 16;
#pragma unroll 2
    for (int i = 0; i < kSteps; ++i) {
      if (first_column + 64 * i >= Traits::kHeadDim) break;
      store_codes<Traits>(__ldg(source + 8 * i), __ldg(source + 8 * i + 1), factor, destination + i * 512);
    }
  }
  ptx::fence_proxy_async_shared();
}

}  // namespace quaver::prefill_fp8
