#include "ops_input.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/e4m3.h"
#include "gemm/activation_quant.h"
#include "gemm/packed_fp8/layout.h"

namespace quaver::testing {
namespace {

using packed_fp8::ceil_divide;

constexpr uint8_t kPoison = 0xFF;

template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

bool is_poison(float value) {
  return std::bit_cast<uint32_t>(value) == 0xFFFFFFFFU;
}

/// Where a value's scale lies, by row and column.
size_t scale_index(const GemmInput& view, int64_t row, int64_t column) {
  return static_cast<size_t>(view.kind == InputKind::kPerBlock ? column / 128 * view.scale_stride + row
                                                               : row * view.scale_stride);
}

/// Every byte that belongs to no value: zeros beyond the last column, poison beyond the last row.
void expect_padding(const InputBuffer& buffer, const InputBytes& bytes) {
  const auto [kind, tokens, columns, static_scale] = buffer.shape();
  if (kind == InputKind::kBf16) {
    for (size_t i = static_cast<size_t>(tokens * columns); i < bytes.rows.size(); ++i) {
      ASSERT_EQ(bytes.rows[i].bits, 0xFFFF) << "behind the last row";
    }
    return;
  }
  const int64_t padded_columns = packed_fp8::num_chunks(columns) * packed_fp8::kChunk;
  const int64_t padded_rows = ceil_divide(tokens, packed_fp8::kBlockRows) * packed_fp8::kBlockRows;
  for (int64_t row = 0; row < padded_rows; ++row) {
    for (int64_t column = row < tokens ? columns : 0; column < padded_columns; ++column) {
      const uint8_t code = bytes.packed[static_cast<size_t>(packed_fp8::packed_offset(row, column, columns))];
      ASSERT_EQ(code, row < tokens ? 0 : kPoison) << "row " << row << ", column " << column;
    }
  }
  const GemmInput view = buffer.view();
  std::vector<bool> used(bytes.scales.size(), false);
  for (int64_t row = 0; row < tokens; ++row) {
    for (int64_t column = 0; column < columns; column += 128) used[scale_index(view, row, column)] = true;
  }
  for (size_t i = 0; i < used.size(); ++i) ASSERT_NE(is_poison(bytes.scales[i]), used[i]) << "scale " << i;
}

double recipe_scale(const InputShape& shape, std::span<const double> group) {
  if (shape.kind == InputKind::kStatic) return shape.static_scale;
  double amax = 0.0;
  for (const double value : group) amax = std::max(amax, std::abs(value));
  return amax > 5e-36 ? amax / 448.0 : 1.0;
}

/// The code of `value`, or of a neighbour where rounding is a matter of FP32's last bits.
bool is_code_of(uint8_t code, double value, double scale) {
  const double got = static_cast<double>(e4m3_decode(code)) * scale;
  const double wanted = std::clamp(value, -448.0 * scale, 448.0 * scale);
  // Half a step of the code, and 1e-5 of the value.
  return std::abs(got - wanted) <= std::max(0x1p-4 * std::abs(wanted), 0x1p-10 * scale) * (1 + 1e-3);
}

}  // namespace

bool same_bits(const InputBytes& a, const InputBytes& b) {
  return same(a.packed, b.packed) && same(a.scales, b.scales) && same(a.rows, b.rows);
}

InputBuffer::InputBuffer(const InputShape& shape) : shape_(shape) {
  const auto [kind, tokens, columns, static_scale] = shape;
  if (kind == InputKind::kBf16) {
    rows_ = poisoned<Bf16>(tokens * columns + 64);
    return;
  }
  packed_ = poisoned<uint8_t>(packed_fp8::packed_bytes(tokens, columns));
  if (kind == InputKind::kPerBlock) {
    scale_stride_ = ceil_divide(tokens, 8) * 8 + 4;
    scales_ = poisoned<float>(packed_fp8::num_chunks(columns) * scale_stride_);
  } else {
    scale_stride_ = kind == InputKind::kStatic ? 0 : 1;
    scales_ = poisoned<float>(tokens + 4);
  }
}

GemmInput InputBuffer::view() const {
  return {.packed = packed_.data(),
          .scales = scales_.data(),
          .scale_stride = scale_stride_,
          .rows = rows_.data(),
          .kind = shape_.kind,
          .static_scale = shape_.static_scale};
}

InputBytes InputBuffer::bytes() const {
  return {.packed = to_host(packed_), .scales = to_host(scales_), .rows = to_host(rows_)};
}

void expect_input(const InputBuffer& buffer, const InputBytes& bytes, std::span<const double> values) {
  const InputShape& shape = buffer.shape();
  const int64_t columns = shape.columns;
  expect_padding(buffer, bytes);
  int64_t neighbours = 0;
  const int64_t group = shape.kind == InputKind::kPerBlock ? 128 : columns;
  for (int64_t row = 0; row < shape.tokens; ++row) {
    for (int64_t begin = 0; begin < columns; begin += group) {
      const auto part = values.subspan(static_cast<size_t>(row * columns + begin),
                                       static_cast<size_t>(std::min(group, columns - begin)));
      if (shape.kind == InputKind::kBf16) {
        for (size_t i = 0; i < part.size(); ++i) {
          const double got = to_float(bytes.rows[static_cast<size_t>(row * columns + begin) + i]);
          ASSERT_NEAR(got, part[i], 0x1p-8 * std::abs(part[i]) * (1 + 1e-3) + 1e-30)
              << "row " << row << ", column " << i;
        }
        continue;
      }
      const double scale = recipe_scale(shape, part);
      const float got_scale = bytes.scales[scale_index(buffer.view(), row, begin)];
      ASSERT_NEAR(got_scale, scale, 1e-5 * scale) << "row " << row << ", column " << begin;
      for (size_t i = 0; i < part.size(); ++i) {
        const int64_t column = begin + static_cast<int64_t>(i);
        const uint8_t code = bytes.packed[static_cast<size_t>(packed_fp8::packed_offset(row, column, columns))];
        ASSERT_TRUE(is_code_of(code, part[i], scale))
            << "row " << row << ", column " << column << ": code " << int{code} << " of " << part[i] << " / " << scale;
        if (code != e4m3_quantize(static_cast<float>(part[i]), 1.0F / got_scale)) ++neighbours;
      }
    }
  }
  EXPECT_LE(neighbours, 3 + shape.tokens * columns / 1000);
}

void expect_cpu_codes(const InputBuffer& buffer, const InputBytes& bytes, std::span<const float> values) {
  const auto [kind, tokens, columns, static_scale] = buffer.shape();
  expect_padding(buffer, bytes);
  LinearWeight weight;
  weight.weight = ConstTensorView(nullptr, DType::kE4M3, {1, columns});
  weight.activation = kind == InputKind::kStatic     ? ActivationQuant::kPerTensor
                      : kind == InputKind::kPerBlock ? ActivationQuant::kPerGroup128
                                                     : ActivationQuant::kPerToken;
  weight.input_scale = static_scale;
  const std::vector<float> expected = quantize_activations(weight, values.data(), tokens);
  for (int64_t row = 0; row < tokens; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      const uint8_t code = bytes.packed[static_cast<size_t>(packed_fp8::packed_offset(row, column, columns))];
      const float got = e4m3_decode(code) * bytes.scales[scale_index(buffer.view(), row, column)];
      const float wanted = expected[static_cast<size_t>(row * columns + column)];
      ASSERT_TRUE(std::bit_cast<uint32_t>(got) == std::bit_cast<uint32_t>(wanted) ||
                  (std::isnan(got) && std::isnan(wanted)))
          << "row " << row << ", column " << column << ": " << got << ", CPU " << wanted;
    }
  }
}

}  // namespace quaver::testing
