// Shapes as cases of the prefill kernel, and how far from float64 it may be.
#pragma once

#include <algorithm>

#include "attention/tiles.h"
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

/// V whose mean over keys [first, last) tells how many of them there are modulo the head dim: for expect_mean_of().
[[nodiscard]] inline Element one_hot_values(int head_dim) {
  return [head_dim](int, int64_t token, int, int d) { return token % head_dim == d ? 1.0F : 0.0F; };
}

/// Of a single kv head with keys of zeros: all heads of `token` are the mean of one_hot_values() over `keys`.
inline void expect_mean_of(const Outputs& outputs, int token, int group, int head_dim, const tiles::KeyRange& keys) {
  std::vector<int> counts(static_cast<size_t>(head_dim), 0);
  for (int64_t key = keys.first; key < keys.last; ++key) ++counts[static_cast<size_t>(key % head_dim)];
  const auto total = static_cast<float>(std::max<int64_t>(keys.last - keys.first, 1));
  for (int head = 0; head < group; ++head) {
    const auto row = static_cast<size_t>(token * group + head);
    for (size_t d = 0; d < counts.size(); ++d) {
      ASSERT_NEAR(outputs.f32[row * counts.size() + d], static_cast<float>(counts[d]) / total, 1e-6F)
          << "token " << token << " head " << head << " column " << d;
    }
  }
}

}  // namespace quaver::testing
