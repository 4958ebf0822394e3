// gelu_tanh(gate) * up of a product, against float64. Shared by the GPU and the emulated machine.
#pragma once

#include <gtest/gtest.h>

#include <cmath>

#include "gemm_case.h"

namespace quaver::testing {

/// `expected`: test.expected_geglu(). Integers, whose sums are exact: what is left are FP32's roundings of the gate and
/// the one to BF16.
inline void expect_geglu(GemmCase& test, const packed_fp8::GemmPlan& plan, const std::vector<double>& expected,
                         int64_t padding = 0) {
  SCOPED_TRACE(concat("m ", test.spec().shape.m, ", n ", test.spec().shape.n, ", k ", test.spec().shape.k, ": ",
                      to_string(plan)));
  const std::vector<float> values = test.run_geglu(plan, nullptr, padding);
  int64_t wrong = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = std::abs(double{values[i]} - expected[i]);
    const bool right = error <= std::abs(expected[i]) * (0x1p-8 + 1e-5) + 1e-12;
    if (!right && ++wrong <= 3) {
      const auto inner = static_cast<size_t>(test.spec().shape.n / 2);
      ADD_FAILURE() << "token " << i / inner << ", row " << i % inner << ": " << values[i] << ", expected "
                    << expected[i];
    }
  }
  EXPECT_EQ(wrong, 0);
}

/// NaN codes of a token, of a gate's row and of one of up reach their own outputs and no others.
inline void expect_geglu_nan_stays(GemmCase& test, const packed_fp8::GemmPlan& plan) {
  SCOPED_TRACE(to_string(plan));
  const int64_t inner = test.spec().shape.n / 2;
  const std::vector<float> clean = test.run_geglu(plan, nullptr);
  test.set_token(7, 3, 0x7F);
  test.set_weight(5, 3, 0xFF);
  test.set_weight(inner + 42, 3, 0x7F);
  const std::vector<float> values = test.run_geglu(plan, nullptr);
  for (int64_t i = 0; i < std::ssize(values); ++i) {
    const bool poisoned = i / inner == 7 || i % inner == 5 || i % inner == 42;
    const float value = values[static_cast<size_t>(i)];
    ASSERT_TRUE(poisoned ? std::isnan(value) : value == clean[static_cast<size_t>(i)]) << i / inner << " " << i % inner;
  }
}

}  // namespace quaver::testing
