// Outputs of high tiles, whose tokens are the 64-row operand (mainloop.cuh): a math thread has neighbouring rows of a
// token, with the gate those of gate and up, 8 rows apart. Each warp stages its 16 tokens and stores whole pieces of
// 16 bytes.
#pragma once

#include <cuda_bf16.h>

#include "gemm/gelu_tanh.cuh"
#include "gemm/packed_fp8/epilogue.cuh"

namespace quaver::packed_fp8 {

/// Stores the outputs of blocks [blocks.begin, blocks.end) of 8 rows (gate: of all): what TileStore is for others.
template <class Traits>
class HighTileStore {
 public:
  __device__ HighTileStore(const Parameters& p, const Tile& tile, const MathThread& thread, SharedState<Traits>& shared,
                           uint8_t* staging)
      : p_(p),
        tile_(tile),
        thread_(thread),
        row_scales_(shared.column_scales[thread.warpgroup]),
        staging_(staging + thread.warp * kWarpTokens * kLineBytes),
        first_token_((tile.token_begin + thread.row_group()) * kGroupRows) {}

  __device__ void run(const TileScales<Traits>& scales, const BlockRange& blocks,
                      const float (&total)[Traits::kAccumulators]) const {
    if (blocks.begin == blocks.end) return;
    thread_.sync_warpgroup();  // the scales of the tile before have been read
    scales.share(row_scales_, thread_);
    thread_.sync_warpgroup();
    if (p_.out_f32) {
      store_f32(scales, blocks, total);
      return;
    }
#pragma unroll
    for (int first = 0; first < kOutputBlocks; first += kStagedBlocks) {
      if (first >= blocks.end || first + kStagedBlocks <= blocks.begin) continue;
      __syncwarp();  // the staging before this one has been read
      auto* const line = reinterpret_cast<uint32_t*>(staging_ + thread_.lane / 4 * kLineBytes) + thread_.lane % 4;
#pragma unroll
      for (int j = 0; j < kStagedBlocks; ++j) {  // lines are an odd number of pieces: no two threads share a bank
        if (!kGate && !blocks.contains(first + j)) continue;
#pragma unroll
        for (int i = 0; i < 2; ++i)
          line[(i * kGroupRows * kLineBytes + j * 16) / 4] = outputs(scales, i, first + j, total);
      }
      __syncwarp();
      store_staged(first, blocks);
    }
  }

 private:
  static constexpr bool kGate = Traits::kOutput == Output::kGeglu;
  static constexpr int kOutputBlocks = Traits::kBlocks / (kGate ? 2 : 1);
  static constexpr int kStagedBlocks = Traits::kStagedBlocks;
  static constexpr int kWarpTokens = 16;
  static constexpr int kLineBytes = kStagedBlocks * 16;  ///< a token's
  static_assert(kStagedBlocks % 2 == 1, "lines that begin in different banks");

  /// Product e = 0, 1 of the thread's token i and block `block`, scaled.
  __device__ float2 products(const TileScales<Traits>& scales, int i, int block, const float* total) const {
    const float2 rows = reinterpret_cast<const float2*>(row_scales_)[4 * block + thread_.lane % 4];
    return {total[4 * block + 2 * i] * (rows.x * scales.rows[i]),
            total[4 * block + 2 * i + 1] * (rows.y * scales.rows[i])};
  }

  /// Two outputs of token i, of block `block` of outputs, as a pair of BF16.
  __device__ uint32_t outputs(const TileScales<Traits>& scales, int i, int block, const float* total) const {
    float2 values;
    if constexpr (kGate) {
      const float2 gate = gelu_tanh(products(scales, i, 2 * block, total));
      const float2 up = products(scales, i, 2 * block + 1, total);
      values = {gate.x * up.x, gate.y * up.y};
    } else {
      values = products(scales, i, block, total);
    }
    const __nv_bfloat162 both = __floats2bfloat162_rn(values.x, values.y);
    return reinterpret_cast<const uint32_t&>(both);
  }

  /// The warp's tokens, piece by piece.
  __device__ void store_staged(int first_block, const BlockRange& blocks) const {
    constexpr int kPieces = kWarpTokens * kStagedBlocks;
    const int first = tile_.row_begin / (kGate ? 2 : 1);
    const int count = (tile_.row_end - tile_.row_begin) / (kGate ? 2 : 1);
    const int n = p_.n / (kGate ? 2 : 1);
#pragma unroll 1
    for (int at = thread_.lane; at < kPieces; at += 32) {
      const int token = first_token_ + at / kStagedBlocks;
      const int block = first_block + at % kStagedBlocks;
      if (token >= p_.m || block >= count || (!kGate && !blocks.contains(block))) continue;
      const int row = (first + block) * kGroupRows;
      auto* const to = static_cast<__nv_bfloat16*>(p_.out) + token * p_.out_stride + row;
      const uint8_t* const from = staging_ + at * 16;
      if (p_.aligned_rows && row + kGroupRows <= n) {
        *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
      } else {
#pragma unroll 1
        for (int i = 0; i < min(kGroupRows, n - row); ++i) to[i] = reinterpret_cast<const __nv_bfloat16*>(from)[i];
      }
    }
  }

  /// Straight from the registers: for tests and logits that want all bits, not for speed.
  __device__ void store_f32(const TileScales<Traits>& scales, const BlockRange& blocks,
                            const float (&total)[Traits::kAccumulators]) const {
#pragma unroll
    for (int j = 0; j < Traits::kBlocks; ++j) {
      const int row = (tile_.row_begin + j) * kGroupRows + thread_.lane % 4 * 2;
      if (!blocks.contains(j) || tile_.row_begin + j >= tile_.row_end) continue;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int token = first_token_ + i * kGroupRows + thread_.lane / 4;
        if (token >= p_.m) continue;
        const float2 values = products(scales, i, j, total);
        float* const to = static_cast<float*>(p_.out) + token * p_.out_stride + row;
        if (row < p_.n) to[0] = values.x;
        if (row + 1 < p_.n) to[1] = values.y;
      }
    }
  }

  const Parameters& p_;
  const Tile& tile_;
  const MathThread& thread_;
  float* row_scales_;
  uint8_t* staging_;
  int first_token_;  ///< of the warp's 16
};

}  // namespace quaver::packed_fp8
