// What needs no sum over a row but perhaps its scale: embedding, quantisation, the gate. A CTA a token.
#pragma once

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
  int columns = 0;
  GemmInput out{};
};

struct GegluParameters {
  const Bf16* gate_up = nullptr;  ///< rows of 2 * columns
  int columns = 0;
  GemmInput out{};
};

template <int kVectors>
__global__ void __launch_bounds__(max_threads(kVectors), min_ctas(kVectors))
    quaver_embed(const __grid_constant__ EmbedParameters p) {
  ptx::launch_dependents();
  ptx::grid_dependency_wait();
  const int64_t token = blockIdx.x;
  const int64_t id = __ldcg(p.token_ids + token);
  const bool known = id >= 0 && id < p.vocab_size;
  const auto raw = load_row<kVectors>(p.table + (known ? id : 0) * p.columns, known ? p.columns : 0);
  Row<kVectors> row;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    row.vectors[v] = raw.get(v);
#pragma unroll
    for (float& value : row.vectors[v].values) value *= p.scale;
  }
  store_bf16_row(p.hidden + token * p.columns, row, p.columns);
}

template <int kVectors>
__global__ void __launch_bounds__(max_threads(kVectors), min_ctas(kVectors))
    quaver_last_rows(const __grid_constant__ LastRowsParameters p) {
  ptx::launch_dependents();
  ptx::grid_dependency_wait();
  const int64_t sequence = blockIdx.x;
  const int64_t last = int64_t{__ldcg(p.query_start + sequence + 1)} - 1;
  const auto raw = load_row<kVectors>(p.rows + last * p.stride, p.columns);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int column = first_column(v);
    if (column < p.columns) store_vector(p.out + sequence * p.columns + column, raw.vectors[v]);
  }
}

template <int kVectors>
__global__ void __launch_bounds__(max_threads(kVectors), min_ctas(kVectors))
    quaver_quantize(const __grid_constant__ QuantizeParameters p) {
  __shared__ Scratch scratch;
  ptx::launch_dependents();
  ptx::grid_dependency_wait();
  const int64_t token = blockIdx.x;
  const auto row = load_row<kVectors>(p.rows + token * p.columns, p.columns);
  store_row(p.out, row, token, p.columns, scratch);
}

/// x/2 (1 + tanh u) = x / (1 + e^-2u), u = sqrt(2/pi) (x + 0.044715 x^3); the CPU's ops/geglu.h in the same form.
[[nodiscard]] __device__ __forceinline__ float gelu_tanh(float x) {
  constexpr float kScale = -1.44269504F * 1.59576912F;  // -2 sqrt(2/pi) / ln 2: e^-2u = 2^exponent
  const float exponent = x * fmaf(x * x, 0.044715F, 1.0F) * kScale;
  // 2^126 is finite, and x / 2^126 is as good as 0.
  return x * ptx::reciprocal_approx(1.0F + ptx::exp2_approx(fminf(exponent, 126.0F)));
}

template <int kVectors>
__global__ void __launch_bounds__(max_threads(kVectors), min_ctas(kVectors))
    quaver_geglu(const __grid_constant__ GegluParameters p) {
  __shared__ Scratch scratch;
  ptx::launch_dependents();
  ptx::grid_dependency_wait();
  const int64_t token = blockIdx.x;
  const Bf16* const gate_row = p.gate_up + token * 2 * p.columns;
  const auto gate = load_row<kVectors>(gate_row, p.columns);
  const auto up = load_row<kVectors>(gate_row + p.columns, p.columns);
  Row<kVectors> row;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const Vector x = gate.get(v);
    const Vector factor = up.get(v);
#pragma unroll
    for (int i = 0; i < kVector; ++i) row.vectors[v].values[i] = gelu_tanh(x.values[i]) * factor.values[i];
  }
  store_row(p.out, row, token, p.columns, scratch);
}

}  // namespace quaver::device_ops
