#include "gemm/linear.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "core/bf16.h"
#include "core/e4m3.h"
#include "gemm/dot_rows.h"
#include "quaver/error.h"

namespace quaver {
namespace {

struct Case {
  DType dtype = DType::kF32;
  int64_t n = 1, k = 1;
  int64_t block_n = 0, block_k = 0;  // 0: one block
  ActivationQuant activation = ActivationQuant::kNone;
};

// A weight matrix with the bytes it points to and its exact values.
struct Matrix {
  std::vector<uint8_t> bytes;
  std::vector<double> values;  // [n, k], dequantised
  LinearWeight weight;
};

Matrix make_matrix(const Case& c, std::mt19937& random) {
  std::normal_distribution<float> normal;
  Matrix m;
  const auto count = static_cast<size_t>(c.n * c.k);
  m.bytes.resize(count * static_cast<size_t>(dtype_bytes(c.dtype)));
  m.weight.weight = ConstTensorView(m.bytes.data(), c.dtype, {c.n, c.k});
  m.weight.activation = c.activation;
  m.weight.input_scale = 0.01F;
  m.weight.block_n = c.block_n == 0 ? c.n : c.block_n;
  m.weight.block_k = c.block_k == 0 ? c.k : c.block_k;
  const int64_t k_blocks = (c.k + m.weight.block_k - 1) / m.weight.block_k;
  if (c.dtype == DType::kE4M3) {
    const int64_t n_blocks = (c.n + m.weight.block_n - 1) / m.weight.block_n;
    std::uniform_real_distribution<float> scale(0.5F, 2.0F);
    for (int64_t i = 0; i < n_blocks * k_blocks; ++i) m.weight.scale.push_back(scale(random));
  }
  for (size_t i = 0; i < count; ++i) {
    const float value = normal(random);
    switch (c.dtype) {
      case DType::kF32:
        reinterpret_cast<float*>(m.bytes.data())[i] = value;
        m.values.push_back(value);
        break;
      case DType::kBF16:
        reinterpret_cast<Bf16*>(m.bytes.data())[i] = to_bf16(value);
        m.values.push_back(to_float(to_bf16(value)));
        break;
      default: {
        m.bytes[i] = e4m3_encode(value * 0.1F);  // small enough to meet subnormals
        const int64_t row = static_cast<int64_t>(i) / c.k;
        const int64_t column = static_cast<int64_t>(i) % c.k;
        const int64_t block = row / m.weight.block_n * k_blocks + column / m.weight.block_k;
        m.values.push_back(static_cast<double>(e4m3_decode(m.bytes[i])) * m.weight.scale[static_cast<size_t>(block)]);
      }
    }
  }
  return m;
}

// The recipe, written out once more in double.
std::vector<double> quantised(const Case& c, const std::vector<float>& x, int64_t rows) {
  std::vector<double> result(x.begin(), x.end());
  if (c.activation == ActivationQuant::kNone) return result;
  const int64_t group = c.activation == ActivationQuant::kPerGroup128 ? 128 : c.k;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t begin = 0; begin < c.k; begin += group) {
      float amax = 0;
      for (int64_t i = begin; i < std::min(c.k, begin + group); ++i) {
        amax = std::max(amax, std::abs(x[static_cast<size_t>(row * c.k + i)]));
      }
      float scale = amax == 0 ? 1.0F : amax / 448.0F;
      if (c.activation == ActivationQuant::kPerTensor) scale = 0.01F;
      for (int64_t i = begin; i < std::min(c.k, begin + group); ++i) {
        auto& value = result[static_cast<size_t>(row * c.k + i)];
        value = static_cast<double>(e4m3_decode(e4m3_encode(static_cast<float>(value) * (1.0F / scale)))) * scale;
      }
    }
  }
  return result;
}

std::vector<float> random_rows(int64_t count, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(count));
  for (float& value : x) value = normal(random);
  return x;
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = [] {
    std::vector<Case> list;
    const std::vector<std::pair<int64_t, int64_t>> shapes{{1, 1}, {3, 7}, {5, 8}, {131, 129}, {64, 640}, {257, 300}};
    for (const auto& [n, k] : shapes) {
      list.push_back({.dtype = DType::kF32, .n = n, .k = k});
      list.push_back({.dtype = DType::kBF16, .n = n, .k = k});
      list.push_back({.dtype = DType::kE4M3, .n = n, .k = k, .block_n = 1});
      list.push_back({.dtype = DType::kE4M3, .n = n, .k = k, .block_n = 1, .activation = ActivationQuant::kPerToken});
      list.push_back({.dtype = DType::kE4M3, .n = n, .k = k, .activation = ActivationQuant::kPerTensor});
      list.push_back({.dtype = DType::kE4M3,
                      .n = n,
                      .k = k,
                      .block_n = 128,
                      .block_k = 128,
                      .activation = ActivationQuant::kPerGroup128});
    }
    return list;
  }();
  return all;
}

// Every format and shape against double sums of the same dequantised values.
TEST(Linear, MatchesDoubleReference) {
  std::mt19937 random(7);
  for (const Case& c : cases()) {
    const Matrix m = make_matrix(c, random);
    for (const int64_t rows : {1, 2, 3, 7, 8, 9, 15, 16, 64, 65}) {
      const std::vector<float> x = random_rows(rows * c.k, random);
      const std::vector<double> exact_x = quantised(c, x, rows);
      for (const bool fixed_order : {false, true}) {
        std::vector<float> y(static_cast<size_t>(rows * c.n), std::numeric_limits<float>::quiet_NaN());
        linear(m.weight, x.data(), rows, y.data(), fixed_order);
        for (int64_t row = 0; row < rows; ++row) {
          for (int64_t n = 0; n < c.n; ++n) {
            double expected = 0;
            double magnitude = 0;
            for (int64_t i = 0; i < c.k; ++i) {
              const double product =
                  exact_x[static_cast<size_t>(row * c.k + i)] * m.values[static_cast<size_t>(n * c.k + i)];
              expected += product;
              magnitude += std::abs(product);
            }
            ASSERT_NEAR(y[static_cast<size_t>(row * c.n + n)], expected, 2e-6 * magnitude + 1e-30)
                << dtype_name(c.dtype) << " n " << c.n << " k " << c.k << " rows " << rows << " at " << row << ", "
                << n;
          }
        }
      }
    }
  }
}

// B25: with fixed_order a row's result does not depend on its batch-mates, bit for bit.
TEST(Linear, FixedOrderIsIndependentOfRows) {
  std::mt19937 random(8);
  for (const Case& c : cases()) {
    const Matrix m = make_matrix(c, random);
    const std::vector<float> x = random_rows(65 * c.k, random);
    std::vector<float> alone(static_cast<size_t>(c.n));
    linear(m.weight, x.data(), 1, alone.data(), true);
    for (const int64_t rows : {2, 3, 8, 17, 65}) {
      std::vector<float> y(static_cast<size_t>(rows * c.n));
      linear(m.weight, x.data(), rows, y.data(), true);
      ASSERT_EQ(std::vector<float>(y.begin(), y.begin() + c.n), alone) << dtype_name(c.dtype) << " rows " << rows;
    }
  }
}

TEST(Linear, TwoRunsAreBitwiseEqual) {
  std::mt19937 random(9);
  const Case c{.dtype = DType::kBF16, .n = 1031, .k = 640};
  const Matrix m = make_matrix(c, random);
  for (const int64_t rows : {1, 5, 64}) {
    const std::vector<float> x = random_rows(rows * c.k, random);
    std::vector<float> first(static_cast<size_t>(rows * c.n));
    std::vector<float> second(first.size());
    linear(m.weight, x.data(), rows, first.data());
    linear(m.weight, x.data(), rows, second.data());
    ASSERT_EQ(first, second);
  }
}

// The path of a build without BLAS agrees with BLAS on many rows.
TEST(Linear, DotRowsAndBlasAgree) {
  std::mt19937 random(10);
  const Case c{.dtype = DType::kE4M3, .n = 300, .k = 520, .block_n = 128, .block_k = 128};
  const Matrix m = make_matrix(c, random);
  const std::vector<float> x = random_rows(100 * c.k, random);
  std::vector<float> with_blas(static_cast<size_t>(100 * c.n));
  if (!blas_panels(m.weight, x.data(), 100, with_blas.data())) return;  // built without BLAS: nothing to compare
  std::vector<float> without(with_blas.size());
  dot_rows(m.weight, x.data(), 100, without.data());
  for (size_t i = 0; i < without.size(); ++i) ASSERT_NEAR(without[i], with_blas[i], 1e-4) << i;
}

// A NaN code in a weight reaches exactly the outputs of its row and is never read as 480.
TEST(Linear, NanCodeOfTheWeightStaysNan) {
  std::vector<uint8_t> codes(size_t{4} * 16, 0x38);  // 1.0
  codes[16 + 3] = 0x7F;
  codes[32 + 15] = 0xFF;
  const LinearWeight w{
      .weight = ConstTensorView(codes.data(), DType::kE4M3, {4, 16}), .scale = {1.0F}, .block_n = 4, .block_k = 16};
  const std::vector<float> x(size_t{20} * 16, 1.0F);
  for (const int64_t rows : {1, 20}) {
    std::vector<float> y(static_cast<size_t>(rows) * 4);
    linear(w, x.data(), rows, y.data());
    EXPECT_EQ(y[0], 16.0F);
    EXPECT_TRUE(std::isnan(y[1]));
    EXPECT_TRUE(std::isnan(y[2]));
    EXPECT_EQ(y[3], 16.0F);
  }
}

// An all-zero token has amax 0: its scale is 1 and its product 0, not NaN.
TEST(Linear, AllZeroTokenGivesZero) {
  std::vector<uint8_t> codes(256, 0x38);
  for (const ActivationQuant activation : {ActivationQuant::kPerToken, ActivationQuant::kPerGroup128}) {
    const LinearWeight w{.weight = ConstTensorView(codes.data(), DType::kE4M3, {1, 256}),
                         .scale = {1.0F},
                         .block_n = 1,
                         .block_k = 256,
                         .activation = activation};
    const std::vector<float> x(256, 0.0F);
    float y = -1;
    linear(w, x.data(), 1, &y);
    EXPECT_EQ(y, 0.0F);
  }
}

TEST(Linear, NoRowsWritesNothing) {
  const float one = 1;
  float y = 5;
  linear({.weight = ConstTensorView(&one, DType::kF32, {1, 1})}, &one, 0, &y);
  EXPECT_EQ(y, 5);
}

TEST(Linear, RefusesWhatItCannotMultiply) {
  const std::vector<float> memory(16, 1.0F);
  std::vector<float> y(16);
  const auto message = [&](const LinearWeight& weight) {
    try {
      linear(weight, memory.data(), 1, y.data());
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(message({}), "weight not given: expected [N, K] with dense rows");
  EXPECT_NE(message({.weight = ConstTensorView(memory.data(), DType::kI32, {2, 2})}).find("i32"), std::string::npos);
  EXPECT_NE(
      message(
          {.weight = ConstTensorView(memory.data(), DType::kE4M3, {4, 4}), .scale = {1.0F}, .block_n = 1, .block_k = 4})
          .find("scales 1: expected 4"),
      std::string::npos);
}

}  // namespace
}  // namespace quaver
