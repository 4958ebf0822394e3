// What needs no sum over a row but perhaps its scale: embedding, quantisation, the gate.
#pragma once

#include "gemm/gelu_tanh.cuh"
#include "ops/cuda/row_output.cuh"
#include "ptx/launch.cuh"

namespace quaver::device_ops {

struct EmbedParameters {
  const Bf16* table = nullptr;
  int64_t vocab_size = 0;
  const int32_t* token_ids = nullptr;
  float scale = 1.0F;
  int columns = 0;
  Bf16* hidden = nullptr;
};

struct LastRowsParameters {
  const Bf16* rows = nullptr;
  int64_t stride = 0;
  const int32_t* query_start = nullptr;
  int columns = 0;
  Bf16* out = nullptr;
};

struct QuantizeParameters {
  const Bf16* rows = nullptr;
  int64_t num_tokens = 0;
  int columns = 0;
  GemmInput out{};
};

struct GegluParameters {
  const Bf16* gate_up = nullptr;  ///< rows of 2 * columns
  int64_t num_tokens = 0;
  int columns = 0;
  GemmInput out{};
};

/// A CTA a token.
template <int kVectors>
__global__ void __launch_bounds__(max_threads(kVectors)) quaver_embed(const __grid_constant__ EmbedParameters p) {
  ptx::launch_dependents();
  ptx::grid_dependency_wait();
  const int64_t token = blockIdx.x;
  const int64_t id = __ldcg(p.token_ids + token);
  const bool known = id >= 0 && id < p.vocab_size;
  const auto raw = load_row<kVectors, OneToken>(p.table + (known ? id : 0) * p.columns, known ? p.columns : 0);
  Row<kVectors> row;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    row.vectors[v] = raw.get(v);
#pragma unroll
    for (float& value : row.vectors[v].values) value *= p.scale;
  }
  store_bf16_row<OneToken>(p.hidden + token * p.columns, row, p.columns);
}

template <int kVectors>
__global__ void __launch_bounds__(max_threads(kVectors))
    quaver_last_rows(const __grid_constant__ LastRowsParameters p) {
  ptx::launch_dependents();
  ptx::grid_dependency_wait();
  const int64_t sequence = blockIdx.x;
  const int64_t last = int64_t{__ldcg(p.query_start + sequence + 1)} - 1;
  const auto raw = load_row<kVectors, OneToken>(p.rows + last * p.stride, p.columns);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int column = first_column<OneToken>(v);
    if (column < p.columns) store_vector(p.out + sequence * p.columns + column, raw.vectors[v]);
  }
}

/// CTAs of quantisation that an SM is to have registers for.
template <int kVectors, class Share>
inline constexpr int kQuantizeCtas = Share::kCtas > 1 ? 1
                                     : kVectors == 1  ? 4
                                     : kVectors == 3  ? 3
                                                      : 1;

template <int kVectors, class Share>
__global__ void __launch_bounds__(max_threads(kVectors), kQuantizeCtas<kVectors, Share>)
    quaver_quantize(const __grid_constant__ QuantizeParameters p) {
  __shared__ Scratches<1, Share> scratches;
  ptx::launch_dependents();
  scratches.prepare();
  ptx::grid_dependency_wait();
  TokenLoop<Share> tokens(p.num_tokens);
  RowStream<kVectors, Share> rows(0);
  const auto fetch = [&] {
    const int columns = tokens.token() < 0 ? 0 : p.columns;
#pragma unroll
    for (int v = 0; v < rows.kCount; ++v) rows.fetch(v, p.rows + int64_t{tokens.token()} * columns, columns);
  };
  fetch();
  do {
    rows.wait();
    store_row(OutputRow{p.out, tokens.token(), p.columns}, rows, scratches.all[tokens.parity()][0]);
    tokens.advance();
    if (tokens.more()) fetch();
  } while (tokens.more());
}

template <int kVectors, class Share>
__global__ void __launch_bounds__(kVectors == 3 ? 640 : max_threads(kVectors), kVectors == 1 ? 4 : 1)
    quaver_geglu(const __grid_constant__ GegluParameters p) {
  __shared__ Scratches<1, Share> scratches;
  ptx::launch_dependents();
  scratches.prepare();
  ptx::grid_dependency_wait();
  TokenLoop<Share> tokens(p.num_tokens);
  RowStream<kVectors, Share> gates(0);
  RowStream<kVectors, Share> ups(1);
  const auto fetch = [&](int v) {
    const int columns = tokens.token() < 0 ? 0 : p.columns;
    const Bf16* const gate = p.gate_up + int64_t{tokens.token()} * 2 * columns;
    gates.fetch(v, gate, columns);
    ups.fetch(v, gate + columns, columns);
  };
#pragma unroll
  for (int v = 0; v < gates.kCount; ++v) fetch(v);
  do {
    gates.wait();
    const OutputRow to{p.out, tokens.token(), p.columns};
    auto& scratch = scratches.all[tokens.parity()];
    tokens.advance();
    Row<gates.kCount> row;
#pragma unroll
    for (int v = 0; v < gates.kCount; ++v) {
      const Vector x = gates.get(v);
      const Vector factor = ups.get(v);
      if (tokens.more()) fetch(v);
#pragma unroll
      for (int i = 0; i < kVector; ++i) row.vectors[v].values[i] = gelu_tanh(x.values[i]) * factor.values[i];
    }
    store_row(to, row, scratch[0]);
  } while (tokens.more());
}

}  // namespace quaver::device_ops
