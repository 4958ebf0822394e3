// Register-blocked products C[rows][16 n] = A[rows][depth] * B[depth][16 n]. Each element is one chain of FMAs in
// ascending depth, whatever the blocking: a row's result does not depend on the rows computed beside it.
#pragma once

#include <cstdint>

#include "core/simd.h"

namespace quaver {

/// A is row-major with `a_stride`; B is `num_panels` panels of [depth][16], `panel_stride` floats apart. C likewise
/// row-major. With `scale`, C[r] = C[r] * scale[r] + A B; else C = A B.
struct BlockProduct {
  const float* a = nullptr;
  int64_t a_stride = 0;
  const float* b = nullptr;
  int64_t panel_stride = 0;
  int num_panels = 0;
  int depth = 0;
  float* c = nullptr;
  int64_t c_stride = 0;
  const float* scale = nullptr;
};

namespace detail {

// Rows x Panels block; 2 * Rows * Panels accumulators live in registers (at most 12 of 16).
template <int Rows, int Panels>
void multiply_block(const BlockProduct& product, int64_t row, int64_t panel) {
  constexpr int kVectors = 2 * Panels;
  const float* a = product.a + row * product.a_stride;
  const float* b = product.b + panel * product.panel_stride;
  simd::F32x8 sum[Rows][kVectors] = {};
  for (int64_t k = 0; k < product.depth; ++k) {
    simd::F32x8 column[kVectors];
#pragma GCC unroll 8
    for (int64_t v = 0; v < kVectors; ++v) {
      column[v] = simd::load<simd::F32x8>(b + (v / 2) * product.panel_stride + k * 16 + (v % 2) * 8);
    }
#pragma GCC unroll 6
    for (int r = 0; r < Rows; ++r) {
      const simd::F32x8 factor = simd::broadcast(a[r * product.a_stride + k]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sum[r][v] = simd::fma(factor, column[v], sum[r][v]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < Rows; ++r) {
    float* c = product.c + (row + r) * product.c_stride + panel * 16;
#pragma GCC unroll 8
    for (int64_t v = 0; v < kVectors; ++v) {
      if (product.scale != nullptr) sum[r][v] += simd::load<simd::F32x8>(c + v * 8) * product.scale[row + r];
      simd::store(c + v * 8, sum[r][v]);
    }
  }
}

// All panels of `Rows` rows; few rows take several panels at once to keep eight FMA chains in flight.
template <int Rows>
void multiply_rows(const BlockProduct& product, int64_t row) {
  constexpr int kWide = Rows == 1 ? 4 : (Rows == 2 ? 2 : 1);
  int panel = 0;
  for (; panel + kWide <= product.num_panels; panel += kWide) multiply_block<Rows, kWide>(product, row, panel);
  for (; panel < product.num_panels; ++panel) multiply_block<Rows, 1>(product, row, panel);
}

}  // namespace detail

inline void multiply(const BlockProduct& product, int64_t rows) {
  const int64_t full = rows - rows % 6;
  for (int panel = 0; panel < product.num_panels; ++panel) {  // a panel stays in L1 for all rows
    for (int64_t row = 0; row < full; row += 6) detail::multiply_block<6, 1>(product, row, panel);
  }
  switch (rows % 6) {
    case 1: return detail::multiply_rows<1>(product, full);
    case 2: return detail::multiply_rows<2>(product, full);
    case 3: return detail::multiply_rows<3>(product, full);
    case 4: return detail::multiply_rows<4>(product, full);
    case 5: return detail::multiply_rows<5>(product, full);
    default: return;
  }
}

}  // namespace quaver
