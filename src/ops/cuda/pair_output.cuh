// Normed rows of neighbouring tokens become a GEMM's input in whole 32-byte sectors of the packed order, two tokens'
// pieces of 16 columns: L2 takes sectors that are written in part at a third of the rate of whole ones (53 a ns).
#pragma once

#include "ops/cuda/row_output.cuh"
#include "ptx/cluster.cuh"

namespace quaver::device_ops {

/// Half of a 16-byte piece of two tokens, of which a lane's neighbour has the other half, becomes all of one of them:
/// even lanes get the first token's, odd lanes the second's.
[[nodiscard]] __device__ __forceinline__ uint4 whole_piece(const uint2& first, const uint2& second) {
  const bool odd = threadIdx.x % 2 != 0;
  const uint2 sent = odd ? first : second;
  const uint2 got{__shfl_xor_sync(~0U, sent.x, 1), __shfl_xor_sync(~0U, sent.y, 1)};
  return odd ? uint4{got.x, got.y, second.x, second.y} : uint4{first.x, first.y, got.x, got.y};
}

/// As row_scale(), of both rows.
template <class Share, int kVectors>
__device__ __forceinline__ Values<Share> pair_scales(const GemmInput& out, const int (&tokens)[2],
                                                     const Row<kVectors> (&rows)[2], Scratch<Share>& scratch) {
  if (out.kind == InputKind::kStatic) {
    if (tokens[0] == 0 && threadIdx.x == 0) out.scales[0] = out.static_scale;
    return {out.static_scale, out.static_scale};
  }
  Values<Share> largest{};
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (const Vector& vector : rows[r].vectors) largest.of[r] = fmaxf(largest.of[r], max_magnitude(vector.values));
  }
  largest = reduce_rows(largest, scratch, Max{});
  const Values<Share> scale{activation_scale(largest.of[0]), activation_scale(largest.of[1])};
  if (threadIdx.x < 2) {
    const bool second = threadIdx.x == 1;
    const int token = second ? tokens[1] : tokens[0];
    if (token >= 0) out.scales[token] = second ? scale.of[1] : scale.of[0];
  }
  return scale;
}

/// As store_row(), for both rows at once, so that whole 32-byte sectors leave a warp.
template <class Share, int kVectors>
__device__ __forceinline__ void store_pair(const GemmInput& out, const int (&tokens)[2], int columns,
                                           const Row<kVectors> (&rows)[2], Scratch<Share>& scratch) {
  if (out.kind == InputKind::kBf16) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      store_bf16_row<TokenPair>(out.rows + int64_t{tokens[r]} * columns, rows[r], tokens[r] < 0 ? 0 : columns);
    }
    return;
  }
  const bool blocks = out.kind == InputKind::kPerBlock;
  const int chunks = static_cast<int>(packed_fp8::num_chunks(columns));
  const int lane_column = static_cast<int>(threadIdx.x % 16) * kVector;
  const int own = threadIdx.x % 2 == 0 ? tokens[0] : tokens[1];
  Values<Share> inverse{};
  if (!blocks) {
    const Values<Share> scale = pair_scales(out, tokens, rows, scratch);
    inverse = {1.0F / scale.of[0], 1.0F / scale.of[1]};
  }
  uint8_t* const packed = out.packed + packed_fp8::packed_offset(max(own, 0), lane_column & ~15, columns);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int chunk = chunk_of<TokenPair>(v);
    uint2 codes[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const auto& values = rows[r].vectors[v].values;
      if (blocks) {
        const OutputRow to{out, tokens[r], columns};
        inverse.of[r] = 1.0F / block_scale(to, values, chunk, to.exists() && chunk < chunks);
      }
      codes[r] = to_codes(values, inverse.of[r]);
    }
    const uint4 piece = whole_piece(codes[0], codes[1]);
    if (own >= 0 && chunk < chunks) *reinterpret_cast<uint4*>(packed + chunk * packed_fp8::kBlockBytes) = piece;
  }
}

/// Pieces of 16 columns that a CTA gets from the other one of its cluster, which has the neighbouring token.
template <int kVectors>
struct PieceExchange {
  uint4 pieces[kVectors][max_threads(kVectors) / 2];
  uint64_t full;

  /// Of chunks of 128 columns by turns, each CTA writes one for both tokens.
  [[nodiscard]] __device__ static bool written_here(int chunk) { return (chunk & 1) == (blockIdx.x & 1); }
  /// By all threads of the cluster.
  __device__ __forceinline__ void prepare() {
    if (threadIdx.x == 0) {
      ptx::mbarrier_init(ptx::shared_address(&full), 1);
      ptx::fence_mbarrier_init();
    }
    ptx::cluster_arrive();
    ptx::cluster_wait();
  }
};

/// As store_row() of a TokenOfTwo.
template <int kVectors>
__device__ __forceinline__ void store_row(const OutputRow& to, const Row<kVectors>& row, int num_rows,
                                          Scratch<TokenOfTwo>& scratch, PieceExchange<kVectors>& exchange) {
  const auto& [out, token, columns] = to;
  if (out.kind == InputKind::kBf16) {
    store_bf16_row<TokenOfTwo>(out.rows + int64_t{token} * columns, row, to.exists() ? columns : 0);
    return;
  }
  const auto thread = static_cast<int>(threadIdx.x);
  const bool odd_lane = thread % 2 != 0;
  const int other = 1 - static_cast<int>(blockIdx.x % 2);
  const bool blocks = out.kind == InputKind::kPerBlock;
  const int chunks = static_cast<int>(packed_fp8::num_chunks(columns));
  float inverse = blocks ? 0.0F : 1.0F / row_scale(to, row, scratch);
  const uint32_t full = ptx::shared_address(&exchange.full);
  if (thread == 0) ptx::mbarrier_arrive_expect(full, static_cast<int>(blockDim.x) * kVectors * 4);
  uint4 pieces[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int chunk = chunk_of<TokenOfTwo>(v);
    const auto& values = row.vectors[v].values;
    if (blocks) inverse = 1.0F / block_scale(to, values, chunk, to.exists() && chunk < chunks);
    const uint2 codes = to_codes(values, inverse);
    const uint2 got{__shfl_xor_sync(~0U, codes.x, 1), __shfl_xor_sync(~0U, codes.y, 1)};
    pieces[v] = odd_lane ? uint4{got.x, got.y, codes.x, codes.y} : uint4{codes.x, codes.y, got.x, got.y};
    if (!odd_lane && !exchange.written_here(chunk)) {
      const float4 sent{__uint_as_float(pieces[v].x), __uint_as_float(pieces[v].y), __uint_as_float(pieces[v].z),
                        __uint_as_float(pieces[v].w)};
      ptx::store_async(ptx::cluster_address(ptx::shared_address(&exchange.pieces[v][thread / 2]), other), sent,
                       ptx::cluster_address(full, other));
    }
  }
  // Even lanes write this CTA's token, odd lanes the other one's.
  const int written = odd_lane ? static_cast<int>(blockIdx.x ^ 1U) : static_cast<int>(blockIdx.x);
  uint8_t* const packed = out.packed + packed_fp8::packed_offset(written, thread % 16 / 2 * 16, columns);
  ptx::mbarrier_wait_cluster(full, 0);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int chunk = chunk_of<TokenOfTwo>(v);
    if (!exchange.written_here(chunk) || chunk >= chunks || written >= num_rows) continue;
    const uint4 piece = odd_lane ? exchange.pieces[v][thread / 2] : pieces[v];
    *reinterpret_cast<uint4*>(packed + chunk * packed_fp8::kBlockBytes) = piece;
  }
}

}  // namespace quaver::device_ops
