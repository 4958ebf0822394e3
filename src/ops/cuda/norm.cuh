// RMS norms, with the residual sum in front and the quantisation behind.
#pragma once

#include "ops/cuda/pair_output.cuh"
#include "ptx/launch.cuh"

namespace quaver::device_ops {

struct NormParameters {
  const Bf16* rows = nullptr;
  const int32_t* gather = nullptr;  ///< row of each output; null: its own number
  int num_tokens = 0;
  const float* norm = nullptr;
  float eps = 0.0F;
  int columns = 0;
  GemmInput out{};
};

struct AddNormParameters {
  const Bf16* projected = nullptr;
  const float* post_norm = nullptr;
  Bf16* hidden = nullptr;
  float layer_scalar = 1.0F;
  const float* next_norm = nullptr;  ///< null: no output
  int num_tokens = 0;
  float eps = 0.0F;
  int columns = 0;
  GemmInput out{};
};

/// Rows of a CTA in FP32.
template <int kVectors, class Share>
using Rows = Row<kVectors>[Share::kRows];

/// 1 / rms of each row.
template <class Share, int kVectors>
[[nodiscard]] __device__ __forceinline__ Values<Share> inverse_rms(const Row<kVectors> (&rows)[Share::kRows],
                                                                   int columns, float eps, Scratch<Share>& scratch) {
  Values<Share> result;
#pragma unroll
  for (int r = 0; r < Share::kRows; ++r) result.of[r] = sum_of_squares(rows[r]);
  result = reduce_rows(result, scratch, Add{});
#pragma unroll
  for (float& value : result.of) value = rsqrtf(value / static_cast<float>(columns) + eps);
  return result;
}

/// row * factor * weights. Rounded before anything is added to it (no FMA), in every kernel alike.
[[nodiscard]] __device__ __forceinline__ Vector scaled(const Vector& row, float factor, const Vector& weights) {
  Vector result;
#pragma unroll
  for (int i = 0; i < kVector; ++i) result.values[i] = __fmul_rn(row.values[i] * factor, weights.values[i]);
  return result;
}

/// rms_norm(rows) goes to the GEMM's input; `tokens` of -1 do not. `exchange`: of rows that a CTA has alone.
template <class Share, int kVectors, class Weights>
__device__ __forceinline__ void store_normed(const GemmInput& out, const int (&tokens)[Share::kRows], int columns,
                                             Row<kVectors> (&rows)[Share::kRows], const Values<Share>& inverse,
                                             const Weights& weights, int num_rows, Scratch<Share>& scratch,
                                             PieceExchange<kVectors>* exchange = nullptr) {
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const Vector weight = weights.get(v);
#pragma unroll
    for (int r = 0; r < Share::kRows; ++r) rows[r].vectors[v] = scaled(rows[r].vectors[v], inverse.of[r], weight);
  }
  if constexpr (Share::kRows == 1) {
    store_row(OutputRow{out, tokens[0], columns}, rows[0], num_rows, scratch, *exchange);
  } else {
    store_pair(out, tokens, columns, rows, scratch);
  }
}

/// CTAs an SM has for pairs of rows of 5,376 columns, so that the loads of one hide behind the sums of others.
inline constexpr int kPairCtas = 3;
/// Threads that an SM is to have registers for.
template <int kVectors, class Share>
inline constexpr int kNormThreads =
    std::is_same_v<Share, TokenPair> && kVectors == 3 ? kPairCtas * 224 : max_threads(kVectors);
template <int kVectors, class Share>
inline constexpr int kNormCtas = std::is_same_v<Share, TokenPair> && kVectors == 1 ? 4 : 1;

template <int kVectors, class Share>
__global__ void __launch_bounds__(kNormThreads<kVectors, Share>, kNormCtas<kVectors, Share>)
    quaver_norm(const __grid_constant__ NormParameters p) {
  __shared__ Scratches<2, Share> scratches;
  __shared__ PieceExchange<kVectors> exchange;
  ptx::launch_dependents();
  scratches.prepare();
  if constexpr (Share::kRows == 1) exchange.prepare();
  const NormWeights<kVectors, Share> weights(p.norm, p.columns);
  ptx::grid_dependency_wait();
  RawRow<kVectors> raw[Share::kRows];
  int tokens[Share::kRows];
#pragma unroll
  for (int r = 0; r < Share::kRows; ++r) {
    const int row = static_cast<int>(blockIdx.x) * Share::kRows + r;
    const int source = row >= p.num_tokens ? -1 : p.gather == nullptr ? row : __ldcg(p.gather + row);
    tokens[r] = source < 0 ? -1 : row;
    const int columns = source < 0 ? 0 : p.columns;
    raw[r] = load_row<kVectors, Share>(p.rows + int64_t{source} * columns, columns);
  }
  __syncwarp();  // all loads are on their way before the first is waited for
  Rows<kVectors, Share> rows;
#pragma unroll
  for (int r = 0; r < Share::kRows; ++r) rows[r] = to_row(raw[r]);
  auto& scratch = scratches.all[0];
  const Values<Share> inverse = inverse_rms(rows, p.columns, p.eps, scratch[0]);
  store_normed<Share>(p.out, tokens, p.columns, rows, inverse, weights, p.num_tokens, scratch[1], &exchange);
}

/// (hidden + projected * inverse * weights) * layer_scalar, rounded to BF16 as it is stored.
[[nodiscard]] __device__ __forceinline__ uint4 residual_sum(const Vector& hidden, const Vector& normed,
                                                            float layer_scalar) {
  Vector sum;
#pragma unroll
  for (int i = 0; i < kVector; ++i) sum.values[i] = (hidden.values[i] + normed.values[i]) * layer_scalar;
  return to_bf16_vector(sum);
}

/// `rows`, the projected ones, become those of the residual stream, which are stored.
template <class Share, int kVectors, class Weights>
__device__ __forceinline__ void add_normed(const AddNormParameters& p, const int (&tokens)[Share::kRows],
                                           const StagedRow<kVectors, Share> (&hidden)[Share::kRows],
                                           const Values<Share>& inverse, const Weights& weights,
                                           Row<kVectors> (&rows)[Share::kRows]) {
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int column = first_column<Share>(v);
    const Vector weight = weights.get(v);
#pragma unroll
    for (int r = 0; r < Share::kRows; ++r) {
      const Vector normed = scaled(rows[r].vectors[v], inverse.of[r], weight);
      const uint4 sum = residual_sum(hidden[r].get(v), normed, p.layer_scalar);
      if (tokens[r] >= 0 && column < p.columns) {
        store_vector(p.hidden + int64_t{tokens[r]} * p.columns + column, sum);
      }
      rows[r].vectors[v] = to_floats(sum);
    }
  }
}

/// Few tokens.
template <int kVectors>
__global__ void __launch_bounds__(max_threads(kVectors)) quaver_add_norm(const __grid_constant__ AddNormParameters p) {
  using Share = TokenOfTwo;
  __shared__ Scratches<3, Share> scratches;
  __shared__ PieceExchange<kVectors> exchange;
  ptx::launch_dependents();
  scratches.prepare();
  exchange.prepare();
  const NormWeights<kVectors, Share> post_norm(p.post_norm, p.columns);
  const NormWeights<kVectors, Share> next_norm(p.next_norm, p.next_norm == nullptr ? 0 : p.columns);
  ptx::grid_dependency_wait();
  // What is wanted last is fetched first: in registers it would be loaded only after the first of the others is there.
  const auto token = static_cast<int>(blockIdx.x);
  const int tokens[1] = {token < p.num_tokens ? token : -1};
  const int columns = tokens[0] < 0 ? 0 : p.columns;
  const int64_t at = int64_t{tokens[0]} * columns;
  StagedRow<kVectors, Share> hidden[1] = {StagedRow<kVectors, Share>(0)};
#pragma unroll
  for (int v = 0; v < kVectors; ++v) hidden[0].fetch(v, p.hidden + at, columns);
  const RawRow<kVectors> raw = load_row<kVectors, Share>(p.projected + at, columns);
  if (p.columns == 0) return;  // never, but no load is put off until after it
  Rows<kVectors, Share> rows = {to_row(raw)};
  auto& scratch = scratches.all[0];
  const Values<Share> inverse = inverse_rms(rows, p.columns, p.eps, scratch[0]);
  ptx::wait_async_copies();
  add_normed<Share>(p, tokens, hidden, inverse, post_norm, rows);
  if (p.next_norm == nullptr) return;
  const Values<Share> next_inverse = inverse_rms(rows, p.columns, p.eps, scratch[1]);
  store_normed<Share>(p.out, tokens, p.columns, rows, next_inverse, next_norm, p.num_tokens, scratch[2], &exchange);
}

/// Many tokens, by persistent CTAs: while a pair is normed the next one comes into shared memory, each thread its own
/// vectors, so that nobody waits for others.
template <int kVectors>
__global__ void __launch_bounds__(kNormThreads<kVectors, TokenPair>, kNormCtas<kVectors, TokenPair>)
    quaver_add_norm_pairs(const __grid_constant__ AddNormParameters p) {
  using Share = TokenPairs;
  __shared__ Scratches<3, Share> scratches;
  ptx::launch_dependents();
  scratches.prepare();
  const NormWeights<kVectors, Share> post_norm(p.post_norm, p.columns);
  const NormWeights<kVectors, Share> next_norm(p.next_norm, p.columns);
  StagedRow<kVectors, Share> projected[2] = {StagedRow<kVectors, Share>(0), StagedRow<kVectors, Share>(1)};
  StagedRow<kVectors, Share> hidden[2] = {StagedRow<kVectors, Share>(2), StagedRow<kVectors, Share>(3)};
  int first = 2 * static_cast<int>(blockIdx.x);
  const auto token = [&](int r) { return first + r < p.num_tokens ? first + r : -1; };
  const auto fetch = [&] {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int columns = token(r) < 0 ? 0 : p.columns;
      const int64_t at = int64_t{token(r)} * columns;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        projected[r].fetch(v, p.projected + at, columns);
        hidden[r].fetch(v, p.hidden + at, columns);
      }
    }
  };
  ptx::grid_dependency_wait();
  fetch();
  for (int parity = 0; first < p.num_tokens; parity ^= 1) {
    const int tokens[2] = {token(0), token(1)};
    ptx::wait_async_copies();
    Rows<kVectors, Share> rows;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) rows[r].vectors[v] = projected[r].get(v);
    }
    auto& scratch = scratches.all[parity];
    const Values<Share> inverse = inverse_rms(rows, p.columns, p.eps, scratch[0]);
    add_normed<Share>(p, tokens, hidden, inverse, post_norm, rows);
    first = min(first + 2 * static_cast<int>(gridDim.x), p.num_tokens);
    if (first < p.num_tokens) fetch();
    if (p.next_norm == nullptr) continue;
    const Values<Share> next_inverse = inverse_rms(rows, p.columns, p.eps, scratch[1]);
    store_normed<Share>(p.out, tokens, p.columns, rows, next_inverse, next_norm, p.num_tokens, scratch[2]);
  }
}

}  // namespace quaver::device_ops
