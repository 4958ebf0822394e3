#include <algorithm>
#include <array>
#include <cmath>

#include "core/bf16.h"
#include "core/e4m3.h"
#include "core/simd.h"
#include "gemm/dot_rows.h"
#include "gemm/weight_view.h"

namespace quaver {
namespace {

using simd::F32x8;

// 3 x 4 sums, 3 values of x and one of W fill the 16 vector registers of x86-64-v3.
constexpr int kMaxRows = 3;
constexpr int kOutputs = 4;
constexpr int64_t kChunkBytes = 65536;          // of W: one work item; stays in L2 while every row of x passes by
constexpr int64_t kParallelProducts = 1 << 17;  // about 5 us of one core: below, threads cost more than they save

/// sums[r][o] = x row r · W row o over `count` columns.
template <class Element, int kRows, int kColumns>
void dot_tile(const Element* w, int64_t w_stride, const float* x, int64_t x_stride, int64_t count,
              float (&sums)[kMaxRows][kOutputs]) {
  F32x8 lanes[kRows][kColumns] = {};
  float tail[kRows][kColumns] = {};
  int64_t i = 0;
  for (; i + kStep <= count; i += kStep) {
    F32x8 x_low[kRows];
    F32x8 x_high[kRows];
    for (int r = 0; r < kRows; ++r) load_step(x + r * x_stride + i, x_low[r], x_high[r]);
    for (int o = 0; o < kColumns; ++o) {
      // The next tile: hardware prefetchers do not follow four short rows at once (1.5x in decode at K = 640).
      __builtin_prefetch(w + (o + kColumns) * w_stride + i);
      F32x8 w_low;
      F32x8 w_high;
      load_step(w + o * w_stride + i, w_low, w_high);
      for (int r = 0; r < kRows; ++r) {
        lanes[r][o] = simd::fma(w_high, x_high[r], simd::fma(w_low, x_low[r], lanes[r][o]));
      }
    }
  }
  for (; i < count; ++i) {
    for (int o = 0; o < kColumns; ++o) {
      const float value = to_float(w[o * w_stride + i]);
      for (int r = 0; r < kRows; ++r) tail[r][o] = std::fma(value, x[r * x_stride + i], tail[r][o]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int o = 0; o < kColumns; ++o) sums[r][o] = simd::sum_lanes(lanes[r][o]) + tail[r][o];
  }
}

/// y[0 … kRows)[n … n + kColumns): one dot_tile per block of columns that shares a scale.
template <class Element, int kRows, int kColumns>
void output_tile(const WeightView<Element>& weight, int64_t n, const float* x, float* y, int64_t y_stride) {
  float total[kMaxRows][kOutputs] = {};
  for (int64_t begin = 0; begin < weight.k; begin += weight.block_k) {
    float sums[kMaxRows][kOutputs];
    dot_tile<Element, kRows, kColumns>(weight.row(n) + begin, weight.row_stride, x + begin, weight.k,
                                       std::min(weight.block_k, weight.k - begin), sums);
    for (int o = 0; o < kColumns; ++o) {
      const float scale = weight.scale(n + o, begin);
      for (int r = 0; r < kRows; ++r) total[r][o] += sums[r][o] * scale;
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int o = 0; o < kColumns; ++o) y[r * y_stride + n + o] = total[r][o];
  }
}

template <class Element, int kRows>
void output_rows(const WeightView<Element>& weight, int64_t begin, int64_t end, const float* x, float* y,
                 int64_t y_stride) {
  int64_t n = begin;
  for (; n + kOutputs <= end; n += kOutputs) output_tile<Element, kRows, kOutputs>(weight, n, x, y, y_stride);
  for (; n < end; ++n) output_tile<Element, kRows, 1>(weight, n, x, y, y_stride);
}

template <class Element>
void dot_rows_of(const WeightView<Element>& weight, const float* x, int64_t num_rows, float* y) {
  const int64_t row_bytes = weight.k * static_cast<int64_t>(sizeof(Element));
  const int64_t chunk = std::max<int64_t>(1, kChunkBytes / std::max<int64_t>(1, row_bytes * kOutputs)) * kOutputs;
  const int64_t num_chunks = (weight.n + chunk - 1) / chunk;
#pragma omp parallel for schedule(dynamic) if (num_chunks > 1 && weight.n * weight.k * num_rows >= kParallelProducts)
  for (int64_t c = 0; c < num_chunks; ++c) {
    const int64_t begin = c * chunk;
    const int64_t end = std::min(weight.n, begin + chunk);
    for (int64_t row = 0; row < num_rows; row += kMaxRows) {
      const float* const x_rows = x + row * weight.k;
      float* const y_rows = y + row * weight.n;
      switch (std::min<int64_t>(kMaxRows, num_rows - row)) {
        case 1: output_rows<Element, 1>(weight, begin, end, x_rows, y_rows, weight.n); break;
        case 2: output_rows<Element, 2>(weight, begin, end, x_rows, y_rows, weight.n); break;
        default: output_rows<Element, 3>(weight, begin, end, x_rows, y_rows, weight.n); break;
      }
    }
  }
}

}  // namespace

void dot_rows(const LinearWeight& weight, const float* x, int64_t num_rows, float* y) {
  with_weight_view(weight, [&](const auto& view) { dot_rows_of(view, x, num_rows, y); });
}

}  // namespace quaver
