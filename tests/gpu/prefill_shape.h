// Shapes as cases of the prefill kernel, and how far from float64 it may be.
#pragma once

#include "core/e4m3.h"
#include "device_case.h"
#include "shape.h"
#include "testing/metric.h"
#include "testing/random.h"

namespace quaver::testing {

/// In `single` Q is what E4M3 holds exactly: the error is that of P alone and the LSE has that of the accumulator.
[[nodiscard]] inline Case prefill_case(const Shape& shape, PrefillMode mode, uint64_t seed) {
  Random random(seed);
  CaseSpec spec = spec_of(shape, {.head_dim_k = mode.head_dim, .head_dim_v = mode.head_dim}, seed);
  spec.query = [&](int, int64_t, int, int) {
    const float x = random.normal();
    return mode.precision == Precision::kSingle ? e4m3_decode(e4m3_quantize(x, 1.0F)) : x;
  };
  return Case(spec);
}

/// `single`: rows of few keys have no other keys to average the rounding of P with.
[[nodiscard]] inline Tolerance prefill_limit(Precision precision, DType out) {
  if (precision == Precision::kSplit) return tolerance(precision, out);
  return {.relative_l2 = 4e-2, .worst_row = 7e-2, .gain = 4e-2, .lse = 5e-3};
}

}  // namespace quaver::testing
