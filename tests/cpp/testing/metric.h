// How close is a result to the float64 oracle? One metric and one table of tolerances for every path and backend.
//
// A result passes when NaN and infinities sit at the same places, and over the finite values
//   relative_l2  |a - e| / |e| over the tensor,
//   worst_row    the largest |a - e| / |e| of one row (a row whose reference is 0 must be exactly 0),
//   gain         the factor g that minimises |a - g e|, so that a systematic scale error of 1 % shows even where the
//                rounding of E4M3 hides it from relative_l2.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <span>
#include <vector>

#include "core/bf16.h"
#include "quaver/attention.h"

namespace quaver::testing {

struct Deviation {
  double relative_l2 = 0.0;
  double worst_row = 0.0;
  int64_t worst_row_index = -1;
  double gain = 1.0;
  int64_t first_nonfinite_mismatch = -1;  ///< element where only one is NaN or infinite, or the infinities differ
};

/// `row` values a row; both spans have the same size.
template <class T>
[[nodiscard]] Deviation deviation(std::span<const T> actual, std::span<const double> expected, int64_t row) {
  Deviation result;
  double error = 0.0;
  double square = 0.0;
  double product = 0.0;
  for (size_t begin = 0; begin < expected.size(); begin += static_cast<size_t>(row)) {
    double row_error = 0.0;
    double row_square = 0.0;
    for (size_t i = begin; i < begin + static_cast<size_t>(row); ++i) {
      const auto a = static_cast<double>(actual[i]);
      const double e = expected[i];
      if (!std::isfinite(a) || !std::isfinite(e)) {
        const bool same = (std::isnan(a) && std::isnan(e)) || a == e;
        if (!same && result.first_nonfinite_mismatch < 0) result.first_nonfinite_mismatch = static_cast<int64_t>(i);
        continue;
      }
      row_error += (a - e) * (a - e);
      row_square += e * e;
      product += a * e;
    }
    error += row_error;
    square += row_square;
    const double ratio = row_error == 0.0 ? 0.0 : std::sqrt(row_error / row_square);  // reference 0: infinite
    if (ratio > result.worst_row) {
      result.worst_row = ratio;
      result.worst_row_index = static_cast<int64_t>(begin) / row;
    }
  }
  result.relative_l2 = error == 0.0 ? 0.0 : std::sqrt(error / square);
  result.gain = square == 0.0 ? 1.0 : product / square;
  return result;
}

/// |a - e| / |e| of two results in floats; NaN where either holds one.
[[nodiscard]] inline double relative_l2(std::span<const float> actual, std::span<const float> expected) {
  double error = 0.0;
  double square = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto e = static_cast<double>(expected[i]);
    error += std::pow(static_cast<double>(actual[i]) - e, 2);
    square += e * e;
  }
  return error == 0.0 ? 0.0 : std::sqrt(error / square);
}

struct Tolerance {
  double relative_l2 = 0.0;
  double worst_row = 0.0;
  double gain = 0.0;  ///< |gain - 1|, beyond 4 sigma of what random errors (one independent sample a row) leave in it
  double lse = 0.0;   ///< absolute, natural units; for |logits| up to about 10
};

/// Steps of the 16-bit grid between two BF16 values.
[[nodiscard]] inline int bf16_steps(Bf16 a, Bf16 b) {
  const auto ordered = [](Bf16 x) {
    const auto bits = std::bit_cast<uint16_t>(x);
    return (bits & 0x8000U) != 0 ? -static_cast<int>(bits & 0x7FFFU) : static_cast<int>(bits);
  };
  return std::abs(ordered(a) - ordered(b));
}

/// Share of the values that are more than one step apart.
[[nodiscard]] inline double beyond_one_step(std::span<const Bf16> a, std::span<const Bf16> b) {
  size_t far = 0;
  for (size_t i = 0; i < a.size(); ++i) far += bf16_steps(a[i], b[i]) > 1 ? 1 : 0;
  return static_cast<double>(far) / static_cast<double>(a.size());
}

/// The table. `out` is the type of the output: BF16 rounding alone is 1.7e-3.
[[nodiscard]] inline Tolerance tolerance(Precision precision, DType out) {
  const bool bf16 = out == DType::kBF16;
  switch (precision) {
    case Precision::kFull:
      return bf16 ? Tolerance{.relative_l2 = 2.2e-3, .worst_row = 4e-3, .gain = 5e-4, .lse = 1e-5}
                  : Tolerance{.relative_l2 = 2e-6, .worst_row = 1e-5, .gain = 1e-6, .lse = 1e-5};
    case Precision::kSplit:
      return bf16 ? Tolerance{.relative_l2 = 2.6e-3, .worst_row = 6e-3, .gain = 1.5e-3, .lse = 5e-3}
                  : Tolerance{.relative_l2 = 2e-3, .worst_row = 5e-3, .gain = 1.5e-3, .lse = 5e-3};
    default:  // kSingle; kAuto is never what ran
      return {.relative_l2 = 4.5e-2, .worst_row = 1.2e-1, .gain = 2.5e-3, .lse = 1e-1};
  }
}

template <class T>
[[nodiscard]] ::testing::AssertionResult close_to(std::span<const T> actual, std::span<const double> expected,
                                                  int64_t row, const Tolerance& limit) {
  if (actual.size() != expected.size() || row <= 0 || expected.size() % static_cast<size_t>(row) != 0) {
    return ::testing::AssertionFailure() << "sizes " << actual.size() << " and " << expected.size() << ", row " << row;
  }
  const Deviation d = deviation(actual, expected, row);
  const double rows = static_cast<double>(expected.size()) / static_cast<double>(row);
  const double gain = limit.gain + 4.0 * d.relative_l2 / std::sqrt(std::max(rows, 1.0));
  const bool ok = d.first_nonfinite_mismatch < 0 && d.relative_l2 <= limit.relative_l2 &&
                  d.worst_row <= limit.worst_row && std::abs(d.gain - 1.0) <= gain;
  if (ok) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "relative L2 " << d.relative_l2 << " (limit " << limit.relative_l2
                                       << "), worst row " << d.worst_row_index << " with " << d.worst_row << " (limit "
                                       << limit.worst_row << "), gain " << d.gain << " (limit 1 +- " << gain
                                       << "), first NaN or infinity mismatch at " << d.first_nonfinite_mismatch;
}

/// LSE: absolute difference, -inf and NaN at the same rows.
template <class T>
[[nodiscard]] ::testing::AssertionResult lse_close_to(std::span<const T> actual, std::span<const double> expected,
                                                      const Tolerance& limit) {
  if (actual.size() != expected.size()) {
    return ::testing::AssertionFailure() << "sizes " << actual.size() << " and " << expected.size();
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto a = static_cast<double>(actual[i]);
    const double e = expected[i];
    const bool same = (std::isnan(a) && std::isnan(e)) || a == e;
    if (!same && !(std::abs(a - e) <= limit.lse)) {
      return ::testing::AssertionFailure()
             << "LSE of row " << i << " is " << a << ", expected " << e << " +- " << limit.lse;
    }
  }
  return ::testing::AssertionSuccess();
}

/// Contents of a dense bf16 or f32 host view as floats.
[[nodiscard]] inline std::vector<float> to_floats(const ConstTensorView& view) {
  std::vector<float> values(static_cast<size_t>(view.num_elements()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = view.dtype == DType::kBF16 ? to_float(static_cast<const Bf16*>(view.data)[i])
                                           : static_cast<const float*>(view.data)[i];
  }
  return values;
}

}  // namespace quaver::testing
