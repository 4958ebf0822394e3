#include <vector>

#include "core/check.h"
#include "gemm/activation_quant.h"
#include "gemm/dot_rows.h"
#include "gemm/linear.h"

namespace quaver {
namespace {

// From this many rows on BLAS beats dot_rows() in spite of unpacking the weight to FP32 first (bench/cpu_speed).
constexpr int64_t kBlasMinRows = 16;
constexpr int64_t kBlasMinElements = 1 << 14;  // of the weight: smaller ones are done before BLAS has woken its threads

void check_weight(const LinearWeight& weight) {
  const ConstTensorView& w = weight.weight;
  check(w.given() && w.rank == 2 && w.dim(0) > 0 && w.dim(1) > 0 && w.stride(1) == 1 && w.stride(0) >= w.dim(1),
        "weight ", to_string(w), ": expected [N, K] with dense rows");
  if (w.dtype != DType::kE4M3) {
    check(weight.scale.empty() && weight.activation == ActivationQuant::kNone, "weight ", to_string(w),
          ": expected no scales and no activation quantisation unless e4m3");
    return;
  }
  check(weight.block_n > 0 && weight.block_k > 0, "scale block ", weight.block_n, "x", weight.block_k,
        ": expected positive sizes");
  const int64_t expected =
      ((w.dim(0) + weight.block_n - 1) / weight.block_n) * ((w.dim(1) + weight.block_k - 1) / weight.block_k);
  check(static_cast<int64_t>(weight.scale.size()) == expected, "weight scales ", weight.scale.size(), ": expected ",
        expected, " for ", to_string(w), " in blocks of ", weight.block_n, "x", weight.block_k);
}

}  // namespace

void linear(const LinearWeight& weight, const float* x, int64_t num_rows, float* y, bool fixed_order) {
  check_weight(weight);
  check(num_rows >= 0, "rows ", num_rows, ": expected >= 0");
  if (num_rows == 0) return;
  std::vector<float> quantised;
  if (weight.activation != ActivationQuant::kNone) {
    quantised = quantize_activations(weight, x, num_rows);
    x = quantised.data();
  }
  const bool use_blas =
      !fixed_order && num_rows >= kBlasMinRows && weight.out_features() * weight.in_features() >= kBlasMinElements;
  if (!use_blas || !blas_panels(weight, x, num_rows, y)) dot_rows(weight, x, num_rows, y);
}

}  // namespace quaver
