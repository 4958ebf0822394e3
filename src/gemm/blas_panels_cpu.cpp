#include <algorithm>
#include <limits>
#include <memory>

#include "gemm/dot_rows.h"
#include "gemm/weight_view.h"

#if QUAVER_HAVE_BLAS
#include <cblas.h>
#endif

namespace quaver {

#if QUAVER_HAVE_BLAS
namespace {

constexpr int64_t kPanelBytes = int64_t{4} << 20;  // FP32 panel: fits a share of L3 beside x

/// Rows [begin, end) of the weight as FP32 in `panel`.
template <class Element>
void dequantize_rows(const WeightView<Element>& weight, int64_t begin, int64_t end, float* panel) {
#pragma omp parallel for schedule(static)
  for (int64_t n = begin; n < end; ++n) {
    const Element* const source = weight.row(n);
    float* const target = panel + (n - begin) * weight.k;
    for (int64_t block = 0; block < weight.k; block += weight.block_k) {
      const int64_t block_end = std::min(weight.k, block + weight.block_k);
      const float scale = weight.scale(n, block);
      int64_t i = block;
      for (; i + kStep <= block_end; i += kStep) {
        simd::F32x8 low;
        simd::F32x8 high;
        load_step(source + i, low, high);
        simd::store(target + i, low * scale);
        simd::store(target + i + 8, high * scale);
      }
      // NOLINTNEXTLINE(clang-analyzer-security.ArrayBound): the analyser lets block + block_k overflow
      for (; i < block_end; ++i) target[i] = to_float(source[i]) * scale;
    }
  }
}

void sgemm(const float* x, int64_t num_rows, int64_t k, const float* w, int64_t w_stride, int64_t num_outputs, float* y,
           int64_t y_stride) {
  const auto to_int = [](int64_t value) {
    check(value <= std::numeric_limits<int>::max(), "matrix dimension ", value, ": expected below 2^31 for BLAS");
    return static_cast<int>(value);
  };
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, to_int(num_rows), to_int(num_outputs), to_int(k), 1.0F, x,
              to_int(k), w, to_int(w_stride), 0.0F, y, to_int(y_stride));
}

}  // namespace

bool blas_panels(const LinearWeight& weight, const float* x, int64_t num_rows, float* y) {
  if (weight.weight.dtype == DType::kF32) {
    sgemm(x, num_rows, weight.in_features(), static_cast<const float*>(weight.weight.data), weight.weight.stride(0),
          weight.out_features(), y, weight.out_features());
    return true;
  }
  with_weight_view(weight, [&](const auto& view) {
    const int64_t row_bytes = view.k * static_cast<int64_t>(sizeof(float));
    const int64_t panel_rows = std::clamp<int64_t>(kPanelBytes / row_bytes, 1, view.n);
    const auto panel = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(panel_rows * view.k));
    for (int64_t begin = 0; begin < view.n; begin += panel_rows) {
      const int64_t end = std::min(view.n, begin + panel_rows);
      dequantize_rows(view, begin, end, panel.get());
      sgemm(x, num_rows, view.k, panel.get(), view.k, end - begin, y + begin, view.n);
    }
  });
  return true;
}

#else

bool blas_panels(const LinearWeight& /*weight*/, const float* /*x*/, int64_t /*num_rows*/, float* /*y*/) {
  return false;
}

#endif

}  // namespace quaver
