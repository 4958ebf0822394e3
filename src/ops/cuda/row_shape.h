// Which thread of a CTA has which columns of a row: vectors of 8 columns (16 bytes of BF16, half a piece of packed
// E4M3), vector `thread + v * threads` for v = 0, 1, …. It follows from the row's width alone, so that the order of
// every sum over a row, and with it every bit of the result, is the same whatever the number of tokens.
#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "gemm/packed_fp8/layout.h"

namespace quaver::device_ops {

inline constexpr int kVector = 8;
/// Widest rows: of the residual stream, and of anything else (the gate of 31B).
inline constexpr int kMaxHiddenSize = 8192;
inline constexpr int kMaxColumns = 21504;

/// A thread has 1, 3 or 7 vectors: 224 threads have the hidden row of 31B (5,376) and 384 its gate (21,504), none idle.
/// Few threads with many vectors leave room for other rows on the SM: 4 of the former, 2 of the latter.
struct RowShape {
  int threads = 0;  ///< a multiple of 32: the 16 vectors of 128 columns are half a warp's
  int vectors = 0;  ///< of a thread
};

/// Most threads of a CTA whose threads have `vectors` vectors of a row.
[[nodiscard]] QUAVER_HD constexpr int max_threads(int vectors) {
  return vectors == 1 ? 256 : vectors == 3 ? 352 : 384;
}

/// What of which tokens a CTA has. kTokens share each of its warps, kCtas share each token, and a thread has the same
/// columns of kRows tokens.
/// A token: a thread has vectors thread + v * threads. Few tokens in norms, whose weights are then held in registers.
struct OneToken {
  static constexpr int kTokens = 1;
  static constexpr int kCtas = 1;
  static constexpr int kRows = 1;
};
/// The same in clusters of two CTAs, which exchange codes (pair_output.cuh).
struct TokenOfTwo : OneToken {};
/// Tokens 2 i and 2 i + 1, each as above: many tokens in norms, which read their weights once for both.
struct TokenPair {
  static constexpr int kTokens = 1;
  static constexpr int kCtas = 1;
  static constexpr int kRows = 2;
};
/// The same, then others.
struct TokenPairs : TokenPair {};
/// Two tokens, then others: lanes 0-15 of a warp have the first and lanes 16-31 the second, so that whole 32-byte
/// sectors of the packed order leave a warp.
struct TwoTokens {
  static constexpr int kTokens = 2;
  static constexpr int kCtas = 1;
  static constexpr int kRows = 1;
};
/// The same, and no others.
struct LonePair : TwoTokens {};
/// The same with two CTAs, a cluster, for two tokens: few tokens.
struct TwoHalves {
  static constexpr int kTokens = 2;
  static constexpr int kCtas = 2;
  static constexpr int kRows = 1;
};

/// Threads for all vectors of a row, those in the padding of the packed order included.
[[nodiscard]] constexpr RowShape row_shape(int64_t columns) {
  const auto vectors = static_cast<int>(packed_fp8::num_chunks(columns)) * (packed_fp8::kChunk / kVector);
  const int each = vectors <= max_threads(1) ? 1 : vectors <= 3 * max_threads(3) ? 3 : 7;
  return {.threads = (vectors + 32 * each - 1) / (32 * each) * 32, .vectors = each};
}
static_assert(row_shape(kMaxHiddenSize).vectors == 3 && row_shape(kMaxColumns).threads == max_threads(7));

}  // namespace quaver::device_ops
