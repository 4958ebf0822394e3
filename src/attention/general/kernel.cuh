// One CTA a query row (token, query head). Warp w of 8 takes the tiles w, w + 8, … of 32 keys: lane = key for QK and
// the softmax, lane = column for PV, O of every warp in shared memory; the warps' results are added in their order.
// Everything is FP32. A row's bits depend on nothing but its own query, keys and position.
#pragma once

#include "attention/general/load.cuh"
#include "attention/general/params.h"
#include "attention/kernel_parts.cuh"

namespace quaver::general {

inline constexpr int kWarps = 8;
inline constexpr int kThreads = 32 * kWarps;
inline constexpr int kTile = 32;  ///< keys; tiles start at absolute multiples

/// Shared memory: q [Dk], then O of every warp [kWarps][Dv].
[[nodiscard]] constexpr int64_t shared_bytes(const KvLayout& layout) {
  return int64_t{4} * (layout.head_dim_k + int64_t{kWarps} * layout.head_dim_v);
}

/// Which keys the row sees.
struct Row {
  int sequence = 0;
  int64_t token = 0;  ///< row of q
  int q_head = 0;
  int kv_head = 0;
  int64_t kv_len = 0;
  tiles::KeyRange keys{};  ///< that it sees
};

/// One past the last token of the image span of row `token` of q, found by a warp: 32 tokens a look.
__device__ inline int64_t span_end(const int32_t* span_ids, int64_t token, int64_t sequence_end) {
  const int32_t id = span_ids[token];
  for (int64_t first = token + 1;; first += 32) {
    const int64_t next = first + threadIdx.x % 32;
    const bool goes_on = next < sequence_end && tiles::span_goes_on(id, span_ids[next]);
    const uint32_t ends = __ballot_sync(~0U, !goes_on);
    if (ends != 0) return first + __ffs(static_cast<int>(ends)) - 1;
  }
}

/// To be called by whole warps.
__device__ inline Row make_row(const Parameters& p, int64_t index) {
  Row row;
  row.token = index / p.num_q_heads;
  row.q_head = static_cast<int>(index % p.num_q_heads);
  row.kv_head = row.q_head / p.group;
  row.sequence = find_sequence(p.query_start, p.num_sequences, row.token);
  if (row.sequence < 0) return row;
  const int64_t first = p.query_start[row.sequence];
  const int64_t q_len = p.query_start[row.sequence + 1] - first;
  row.kv_len = p.seq_lens[row.sequence];
  const int64_t token = row.token - first;
  row.keys = tiles::visible_keys(p.mask, row.kv_len, q_len, token);
  if (p.span_ids != nullptr) {
    const int64_t end = span_end(p.span_ids, row.token, first + q_len) - first;
    row.keys = tiles::visible_keys_in_span(p.mask, row.kv_len, q_len, token, end);
  }
  return row;
}

/// Softmax state of a warp: the sum is spread over its lanes.
struct Softmax {
  float max = -INFINITY;  ///< of the logits so far, in log2 units
  float sum = 0.0F;       ///< lane l: of the weights of keys l, l + 32, …
};

__device__ __forceinline__ float warp_max(float x) {
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0U, x, step));
  return x;
}

__device__ __forceinline__ float warp_sum(float x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0U, x, step);
  return x;
}

/// exp2(x - max), 0 for both -inf.
__device__ __forceinline__ float weight(float x, float max) {
  return exp2f(x - (max == -INFINITY ? 0.0F : max));
}

/// q·k in log2 units, softcap applied.
__device__ __forceinline__ float logit_log2(const Parameters& p, float product, float scale) {
  constexpr float kLog2E = 1.44269504088896341F;
  const float logit = product * scale;
  return kLog2E * (p.softcap > 0.0F ? p.softcap * tanhf(logit / p.softcap) : logit);
}

__device__ __forceinline__ const uint8_t* page_at(const Parameters& p, const Row& row, int64_t key) {
  const int64_t page = p.block_table[row.sequence * p.block_table_stride + key / p.layout.page_size];
  return p.pages + page * p.page_stride;
}

/// One tile of keys: logits, weights, O = O * alpha + weights · V. `weights` is this warp's scratch of kTile floats.
template <KvDtype kDtype>
__device__ void add_tile(const Parameters& p, const Row& row, int64_t first_key, float scale, const float* q,
                         float* weights, float* out, Softmax& softmax) {
  const KvLayout& layout = p.layout;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t key = first_key + lane;
  const bool visible = key >= row.keys.first && key < row.keys.last;
  const uint32_t mask = __ballot_sync(~0U, visible);
  if (mask == 0) return;
  float logit = -INFINITY;
  if (visible) {
    const auto in_page = static_cast<int>(key % layout.page_size);
    const uint8_t* k = page_at(p, row, key) + page_format::k_offset(layout, row.kv_head, in_page, 0);
    logit = logit_log2(p, dot<kDtype>(q, k, layout.head_dim_k), scale);
  }
  const float max = fmaxf(softmax.max, warp_max(logit));  // a NaN logit is no maximum; its weight is NaN
  const float alpha = weight(softmax.max, max);
  const float own = visible ? weight(logit, max) : 0.0F;
  softmax.sum = softmax.sum * alpha + own;
  softmax.max = max;
  weights[lane] = own;
  __syncwarp();
  if (alpha != 1.0F) {
    for (int dim = lane; dim < layout.head_dim_v; dim += 32) out[dim] *= alpha;
  }
  for (int group = 0; group < kTile / kGroup; ++group) {
    const uint32_t in_group = mask >> (kGroup * group) & 0xFFFFU;
    if (in_group == 0) continue;
    const int64_t group_key = first_key + kGroup * group;
    const auto in_page = static_cast<int>(group_key % layout.page_size);
    const uint8_t* page = page_at(p, row, group_key);
    for (int dim = lane; dim < layout.head_dim_v; dim += 32) {
      const uint8_t* v = page + page_format::v_offset(layout, row.kv_head, in_page, dim);
      out[dim] = add_group<kDtype>(out[dim], weights + kGroup * group, in_group, v, layout.head_dim_v);
    }
  }
  __syncwarp();
}

/// Adds the warps' results and the sink, and writes the row.
__device__ inline void finish_row(const Parameters& p, const Row& row, const float (&maxima)[kWarps],
                                  const float (&sums)[kWarps], const float* out) {
  constexpr float kLn2 = 0.693147180559945309F;
  constexpr float kLog2E = 1.44269504088896341F;
  const float sink = p.sinks == nullptr ? -INFINITY : p.sinks[row.q_head] * kLog2E;
  float max = sink;
  for (const float warp : maxima) max = fmaxf(max, warp);
  float factors[kWarps];
  float sum = weight(sink, max);
  for (int w = 0; w < kWarps; ++w) {
    factors[w] = weight(maxima[w], max);
    sum = fmaf(sums[w], factors[w], sum);
  }
  const float v_scale =
      (p.v_scale == nullptr ? 1.0F : p.v_scale[row.kv_head]) * p.v_descale.at(row.sequence, row.kv_head);
  for (int dim = static_cast<int>(threadIdx.x); dim < p.layout.head_dim_v; dim += kThreads) {
    float value = 0.0F;
    for (int w = 0; w < kWarps; ++w) value = fmaf(out[w * p.layout.head_dim_v + dim], factors[w], value);
    value = sum == 0.0F ? 0.0F : value / sum * v_scale;
    const int64_t at = row.token * p.out_strides.token + row.q_head * p.out_strides.head + dim;
    if (p.out_f32) {
      static_cast<float*>(p.out)[at] = value;
    } else {
      static_cast<Bf16*>(p.out)[at] = to_bf16(value);
    }
  }
  if (p.lse != nullptr && threadIdx.x == 0) {
    p.lse[row.token * p.lse_strides.token + row.q_head * p.lse_strides.head] = (max + log2f(sum)) * kLn2;
  }
}

template <KvDtype kDtype>
__global__ void __launch_bounds__(kThreads) quaver_general(const __grid_constant__ Parameters p) {
  extern __shared__ float shared[];
  __shared__ float weights[kWarps][kTile];
  __shared__ float maxima[kWarps];
  __shared__ float sums[kWarps];
  float* q = shared;
  float* out = shared + p.layout.head_dim_k;
  const int warp = static_cast<int>(threadIdx.x / 32);
  for (int64_t index = blockIdx.x; index < p.num_rows; index += gridDim.x) {
    const Row row = make_row(p, index);
    if (row.sequence < 0) continue;  // the same for the whole CTA
    __syncthreads();                 // the row before has been written
    const Bf16* source = p.q + row.token * p.q_strides.token + row.q_head * p.q_strides.head;
    for (int d = static_cast<int>(threadIdx.x); d < p.layout.head_dim_k; d += kThreads) q[d] = to_float(source[d]);
    for (int d = static_cast<int>(threadIdx.x); d < kWarps * p.layout.head_dim_v; d += kThreads) out[d] = 0.0F;
    __syncthreads();
    const float scale = p.softmax_scale * (p.k_scale == nullptr ? 1.0F : p.k_scale[row.kv_head]) *
                        (p.q_descale.at(row.sequence, row.kv_head) * p.k_descale.at(row.sequence, row.kv_head));
    Softmax softmax;
    const int64_t last_tile = (row.keys.last + kTile - 1) / kTile;
    int64_t tile = row.keys.first / kTile;
    tile += (warp - tile % kWarps + kWarps) % kWarps;  // warp w always takes the tiles = w modulo 8
    for (; tile < last_tile; tile += kWarps) {
      add_tile<kDtype>(p, row, tile * kTile, scale, q, weights[warp], out + warp * p.layout.head_dim_v, softmax);
    }
    const float sum = warp_sum(softmax.sum);
    if (threadIdx.x % 32 == 0) {
      maxima[warp] = softmax.max;
      sums[warp] = sum;
    }
    __syncthreads();
    finish_row(p, row, maxima, sums, out);
  }
}

}  // namespace quaver::general
