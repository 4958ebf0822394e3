// Sums to outputs: scaled, converted, transposed through shared memory into whole lines of [M, N].
#pragma once

#include <cuda_bf16.h>

#include "gemm/packed_fp8/exchange.cuh"
#include "ptx/bulk_copy.cuh"
#include "ptx/stmatrix.cuh"
#include "ptx/tensor_store.cuh"

namespace quaver::packed_fp8 {

/// The scales that a math thread needs for a tile, read before the products so that nobody waits for them.
template <class Traits>
struct TileScales {
  static constexpr int kPerThread = (Traits::kColumns + 127) / 128;
  float rows[2] = {1.0F, 1.0F};  ///< of rows (high tiles: tokens) 8i + g
  float columns[kPerThread];     ///< of columns index(), index() + 128: to be shared with the warpgroup

  __device__ TileScales(const Parameters& p, const Tile& tile, const MathThread& thread) {
    if constexpr (Traits::kScaling == Scaling::kOuter) {
      const int first_row = (Traits::kHigh ? tile.token_begin : tile.row_begin) * kGroupRows;
      const int first_column = (Traits::kHigh ? tile.row_begin : tile.token_begin) * kGroupRows;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = first_row + (thread.row_group() + i) * kGroupRows + thread.lane / 4;
        rows[i] = Traits::kHigh ? token_scale(p, row) : weight_scale(p, row);
      }
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        const int column = first_column + i * 128 + thread.index();
        columns[i] = Traits::kHigh ? weight_scale(p, column) : token_scale(p, column);
      }
    }
  }

  /// Where all threads of the warpgroup find those of its columns, after a sync_warpgroup().
  __device__ void share(float* column_scales, const MathThread& thread) const {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int column = i * 128 + thread.index();
      if (column < Traits::kColumns) column_scales[column] = columns[i];
    }
  }

 private:
  __device__ static float weight_scale(const Parameters& p, int row) { return row < p.n ? p.weight_scales[row] : 0.0F; }
  __device__ static float token_scale(const Parameters& p, int token) {
    return token < p.m ? p.token_scales[token * p.token_scale_stride] : 0.0F;
  }
};

/// Whether a warpgroup's outputs of `blocks` go out as boxes, which takes aligned rows. Boxes are whole: 64 rows of the
/// tile and all its tokens; what lies beyond the matrix is left out.
template <class Traits>
[[nodiscard]] __device__ __forceinline__ bool fill_boxes(bool aligned_rows, const Tile& tile,
                                                         const BlockRange& blocks) {
  return aligned_rows && blocks.begin == 0 && blocks.end == Traits::kBlocks &&
         tile.row_end - tile.row_begin >= kWarpgroupRows / kGroupRows;
}

/// By one thread: the staged box to the outputs from `column` on of the tokens from `token` on.
template <class Traits>
__device__ __forceinline__ void store_box(const Parameters& p, const uint8_t* staging, int column, int token) {
  // Of many tokens, whoever reads the outputs begins with those that L2 no longer holds.
  ptx::tensor_store(p.out_map, ptx::shared_address(staging), column, token,
                    Traits::kTokens > 128 ? ptx::policy_evict_first() : ptx::policy_evict_normal());
  ptx::tensor_store_commit();
}

/// Stores the outputs of blocks [blocks.begin, blocks.end) of 8 tokens.
template <class Traits>
class TileStore {
 public:
  __device__ TileStore(const Parameters& p, const Tile& tile, const MathThread& thread, SharedState<Traits>& shared,
                       uint8_t* staging)
      : p_(p), tile_(tile), thread_(thread), token_scales_(shared.column_scales[thread.warpgroup]), staging_(staging) {}

  __device__ void run(const TileScales<Traits>& scales, const BlockRange& blocks,
                      float (&total)[Traits::kAccumulators]) {
    if (blocks.begin == blocks.end) return;
    if constexpr (Traits::kScaling == Scaling::kOuter) apply(scales, total);
    if (p_.out_f32) {
      store_f32(blocks, total);
      return;
    }
    const bool boxes = fill_boxes<Traits>(p_.aligned_rows, tile_, blocks);
    constexpr int kStagedBlocks = Traits::kStagedTokens / 8;
#pragma unroll
    for (int first = 0; first < Traits::kBlocks; first += kStagedBlocks) {
      if (first >= blocks.end || first + kStagedBlocks <= blocks.begin) continue;
      if (thread_.index() == 0) ptx::tensor_store_wait_read();
      thread_.sync_warpgroup();  // the staging before this one has been read
#pragma unroll
      for (int j = first; j < first + kStagedBlocks; ++j) {
        if (blocks.contains(j)) stage(j - first, total + 4 * j);
      }
      if (boxes) ptx::fence_proxy_async_shared();
      thread_.sync_warpgroup();
      if (!boxes) {
        store_staged(first, blocks);
      } else if (thread_.index() == 0) {
        store_box<Traits>(p_, staging_, (tile_.row_begin + thread_.first_group) * kGroupRows,
                          (tile_.token_begin + first) * kGroupRows);
      }
    }
  }

 private:
  __device__ void apply(const TileScales<Traits>& scales, float (&total)[Traits::kAccumulators]) {
    scales.share(token_scales_, thread_);
    thread_.sync_warpgroup();
#pragma unroll
    for (int j = 0; j < Traits::kBlocks; ++j) {
      const float2 token = reinterpret_cast<const float2*>(token_scales_)[4 * j + thread_.lane % 4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        total[4 * j + 2 * i] *= token.x * scales.rows[i];
        total[4 * j + 2 * i + 1] *= token.y * scales.rows[i];
      }
    }
    thread_.sync_warpgroup();  // the next tile overwrites the scales
  }

  /// Offset of piece `piece` (8 outputs) of the staged token 8 * block + in_block: 128 bytes a token, pieces permuted
  /// against bank conflicts.
  __device__ static int staged_offset(int block, int in_block, int piece) {
    return block * 1024 + in_block * 128 + (piece ^ in_block) * 16;
  }

  __device__ void stage(int block, const float* x) const {
    const auto pair = [](float low, float high) {
      const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
      return reinterpret_cast<const uint32_t&>(both);
    };
    const int piece = 2 * thread_.warp + thread_.lane / 8 % 2;
    ptx::stmatrix_x2_transposed(ptx::shared_address(staging_) + staged_offset(block, thread_.lane % 8, piece),
                                pair(x[0], x[1]), pair(x[2], x[3]));
  }

  /// 8 threads a token, 16 tokens at a time.
  __device__ void store_staged(int first_block, const BlockRange& blocks) const {
    const int piece = thread_.index() % 8;
    const int row_group = tile_.row_begin + thread_.first_group + piece;
    if (row_group >= tile_.row_end) return;
    const int row = row_group * kGroupRows;
    const int first = thread_.index() / 8;
    const int first_token = (tile_.token_begin + first_block) * kGroupRows;
    // Staged tokens of this part that exist.
    const int begin = (blocks.begin - first_block) * 8;
    const int end = min(min((blocks.end - first_block) * 8, Traits::kStagedTokens), p_.m - first_token);
    auto* to = static_cast<__nv_bfloat16*>(p_.out) + (first_token + first) * p_.out_stride + row;
    const bool whole = p_.aligned_rows && row + kGroupRows <= p_.n;
#pragma unroll 1
    for (int token = first; token < end; token += 16, to += 16 * p_.out_stride) {
      if (token < begin) continue;
      const uint8_t* from = staging_ + staged_offset(token / 8, first % 8, piece);
      if (whole) {
        *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
      } else {
#pragma unroll 1
        for (int i = 0; i < min(kGroupRows, p_.n - row); ++i) to[i] = reinterpret_cast<const __nv_bfloat16*>(from)[i];
      }
    }
  }

  /// Straight from the registers: for tests and logits that want all bits, not for speed.
  __device__ void store_f32(const BlockRange& blocks, const float (&total)[Traits::kAccumulators]) const {
    const int row_group = tile_.row_begin + thread_.row_group();
    const int row = row_group * kGroupRows + thread_.lane / 4;
    const int token = tile_.token_begin * kGroupRows + thread_.lane % 4 * 2;
    auto* const out = static_cast<float*>(p_.out) + token * p_.out_stride + row;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (row_group + i >= tile_.row_end || row + 8 * i >= p_.n) continue;
#pragma unroll
      for (int j = 0; j < Traits::kBlocks; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (blocks.contains(j) && token + 8 * j + e < p_.m) {
            out[(8 * j + e) * p_.out_stride + 8 * i] = total[4 * j + 2 * i + e];
          }
        }
      }
    }
  }

  const Parameters& p_;
  const Tile& tile_;
  const MathThread& thread_;
  float* token_scales_;
  uint8_t* staging_;
};

}  // namespace quaver::packed_fp8
