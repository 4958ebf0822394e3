// Sums of gate and up to gelu_tanh(gate) * up in BF16.
//
// Weight rows of gate and up take turns, 8 of each, so a math thread has both of an output in its registers
// (mainloop.cuh): i = 0 the gate, i = 1 up. Half as many outputs as sums: a whole tile is staged at once.
#pragma once

#include <cuda_bf16.h>

#include "gemm/gelu_tanh.cuh"
#include "gemm/packed_fp8/epilogue.cuh"

namespace quaver::packed_fp8 {

/// Stores the outputs of blocks [blocks.begin, blocks.end) of 8 tokens: what TileStore is for plain products.
template <class Traits>
class GegluStore {
 public:
  __device__ GegluStore(const Parameters& p, const Tile& tile, const MathThread& thread, SharedState<Traits>& shared,
                        uint8_t* staging)
      : p_(p), tile_(tile), thread_(thread), token_scales_(shared.column_scales[thread.warpgroup]), staging_(staging) {}

  __device__ void run(const TileScales<Traits>& scales, const BlockRange& blocks,
                      const float (&total)[Traits::kAccumulators]) const {
    if (blocks.begin == blocks.end) return;
    scales.share(token_scales_, thread_);
    if (thread_.index() == 0) ptx::tensor_store_wait_read();
    thread_.sync_warpgroup();  // the scales are there, and the staging of the tile before has been read
    // Lines of two blocks' tokens, whose places among the banks are those of any other two.
    const uint32_t lines = ptx::shared_address(staging_) + staged_offset(thread_.lane % 16, thread_.warp);
#pragma unroll
    for (int j = 0; j < Traits::kBlocks; j += 2) {
      if (j >= blocks.end || j + 2 <= blocks.begin) continue;
      constexpr bool kTwo = Traits::kBlocks > 1;
      const uint32_t first = activations(scales, j, total + 4 * j);
      const uint32_t second = kTwo ? activations(scales, j + 1, total + 4 * (j + kTwo)) : 0;
      ptx::stmatrix_x2_transposed(lines + j * 8 * kTokenStagedBytes, first, second);
    }
    const bool boxes = fill_boxes<Traits>(true, tile_, blocks);
    if (boxes) ptx::fence_proxy_async_shared();
    thread_.sync_warpgroup();
    if (!boxes) {
      store_staged(blocks);
    } else if (thread_.index() == 0) {
      store_box<Traits>(p_, staging_, first_output(), tile_.token_begin * kGroupRows);
    }
  }

 private:
  static constexpr int kTokenPieces = Traits::kTokenOutputs / kGroupRows;  ///< of 8 outputs
  static constexpr int kTokensAtOnce = 128 / kTokenPieces;                 ///< a thread a piece
  static constexpr int kTokenStagedBytes = kTokenPieces * 16;

  /// Outputs of the thread's row and two tokens of block `block`, as a pair of BF16.
  __device__ uint32_t activations(const TileScales<Traits>& scales, int block, const float* x) const {
    const float2 token = reinterpret_cast<const float2*>(token_scales_)[4 * block + thread_.lane % 4];
    const float2 gate = gelu_tanh(float2{x[0] * (token.x * scales.rows[0]), x[1] * (token.y * scales.rows[0])});
    const float2 up{x[2] * (token.x * scales.rows[1]), x[3] * (token.y * scales.rows[1])};
    const __nv_bfloat162 both = __floats2bfloat162_rn(gate.x * up.x, gate.y * up.y);
    return reinterpret_cast<const uint32_t&>(both);
  }

  /// Column of the warpgroup's first output.
  __device__ int first_output() const { return (tile_.row_begin + thread_.first_group) / 2 * kGroupRows; }

  /// 64 bytes a token; pieces are permuted so that those of 8 tokens lie in different banks.
  __device__ static int staged_offset(int token, int piece) {
    return token * kTokenStagedBytes + (piece ^ token / 2 % kTokenPieces) * 16;
  }

  /// 4 threads a token, 32 tokens at a time.
  __device__ void store_staged(const BlockRange& blocks) const {
    const int piece = thread_.index() % kTokenPieces;
    if (tile_.row_begin + thread_.first_group + 2 * piece >= tile_.row_end) return;
    const int first_token = tile_.token_begin * kGroupRows;
    const int end = min(blocks.end * 8, p_.m - first_token);
    const int in_step = thread_.index() / kTokenPieces;
    const uint8_t* const staged = staging_ + staged_offset(in_step, piece);
    auto* const out = static_cast<__nv_bfloat16*>(p_.out) + (first_token + in_step) * p_.out_stride + first_output() +
                      piece * kGroupRows;
#pragma unroll
    for (int step = 0; step < Traits::kTokens; step += kTokensAtOnce) {
      const int token = step + in_step;
      if (token < blocks.begin * 8 || token >= end) continue;
      *reinterpret_cast<uint4*>(out + step * p_.out_stride) =
          *reinterpret_cast<const uint4*>(staged + step * kTokenStagedBytes);
    }
  }

  const Parameters& p_;
  const Tile& tile_;
  const MathThread& thread_;
  float* token_scales_;
  uint8_t* staging_;
};

}  // namespace quaver::packed_fp8
