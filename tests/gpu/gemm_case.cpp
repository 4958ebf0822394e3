#include "gemm_case.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numbers>
#include <numeric>

#include "core/e4m3.h"
#include "testing/random.h"

namespace quaver::testing {
namespace {

using packed_fp8::ceil_divide;
using packed_fp8::packed_bytes;
using packed_fp8::packed_offset;
using packed_fp8::Scaling;

constexpr uint8_t kNanCode = 0xFF;

/// 256 codes from which values are drawn with equal chance.
std::array<uint8_t, 256> alphabet(GemmData data) {
  std::array<uint8_t, 256> codes{};
  Random random(77);
  for (size_t i = 0; i < codes.size(); ++i) {
    const float value =
        data == GemmData::kIntegers ? static_cast<float>(static_cast<int>(i % 5) - 2) : 100.0F * random.normal();
    codes[i] = e4m3_encode(value);
  }
  return codes;
}

std::vector<uint8_t> random_codes(int64_t rows, int64_t columns, GemmData data, uint64_t seed) {
  const auto codes = alphabet(data);
  std::vector<uint8_t> matrix(static_cast<size_t>(rows * columns));
#pragma omp parallel for schedule(static)
  for (int64_t row = 0; row < rows; ++row) {
    Random random(seed * 0x9E3779B97F4A7C15U + static_cast<uint64_t>(row));
    uint8_t* to = matrix.data() + row * columns;
    for (int64_t at = 0; at < columns; at += 8) {
      const uint64_t bits = random.bits();
      for (int64_t i = 0; i < std::min<int64_t>(8, columns - at); ++i) to[at + i] = codes[bits >> (8 * i) & 0xFF];
    }
  }
  return matrix;
}

std::vector<float> random_scales(int64_t count, GemmData data, uint64_t seed) {
  std::vector<float> scales(static_cast<size_t>(count));
  Random random(seed);
  for (float& scale : scales) {
    scale = data == GemmData::kIntegers ? std::ldexp(1.0F, static_cast<int>(random.below(5)) - 2)
                                        : static_cast<float>(0.5 + random.uniform());
  }
  return scales;
}

/// Two parts take turns in groups of 8 rows.
DeviceBuffer<uint8_t> pack(const DeviceBuffer<uint8_t>& source, int64_t rows, int64_t columns, int64_t parts = 1) {
  DeviceBuffer<uint8_t> packed(packed_bytes(rows, columns));
  check_cuda(cudaMemset(packed.data(), kNanCode, packed.bytes()), "cudaMemset");
  for (int64_t part = 0; part < parts; ++part) {
    packed_fp8::pack_rows({.source = source.data() + part * (rows / parts) * columns,
                           .row_stride = columns,
                           .rows = rows / parts,
                           .columns = columns,
                           .packed = packed.data(),
                           .first_row = part * packed_fp8::kGroupRows,
                           .group_stride = parts},
                          nullptr);
  }
  check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  return packed;
}

void set_code(const DeviceBuffer<uint8_t>& packed, int64_t columns, int64_t row, int64_t column, uint8_t code) {
  check_cuda(cudaMemset(packed.data() + packed_offset(row, column, columns), code, 1), "cudaMemset");
  check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

}  // namespace

const packed_fp8::PackedGemm& device_gemm() {
  static const packed_fp8::PackedGemm gemm(query_device(0));
  return gemm;
}

const packed_fp8::Workspace& device_workspace() {
  static const packed_fp8::Workspace workspace;
  return workspace;
}

bool device_counters_are_zero() {
  std::vector<int> counters(packed_fp8::kArrivalBytes / sizeof(int));
  check_cuda(cudaMemcpy(counters.data(), device_workspace().arrivals(), packed_fp8::kArrivalBytes, cudaMemcpyDefault),
             "cudaMemcpy");
  return std::ranges::count(counters, 0) == std::ssize(counters);
}

GemmCase::GemmCase(const GemmSpec& spec) : spec_(spec) {
  const auto [m, n, k] = spec.shape;
  weight_codes_ = random_codes(n, k, spec.data, 2 * spec.seed);
  token_codes_ = random_codes(m, k, spec.data, 2 * spec.seed + 1);
  if (spec.scaling == Scaling::kBlock) {
    const int64_t k_blocks = ceil_divide(k, 128);
    token_scale_stride_ = ceil_divide(m, 8) * 8;
    weight_scales_ = random_scales(ceil_divide(n, 128) * k_blocks, spec.data, spec.seed + 100);
    token_scales_ = random_scales(k_blocks * token_scale_stride_, spec.data, spec.seed + 200);
  } else {
    token_scale_stride_ = spec.one_token_scale ? 0 : 1;
    weight_scales_ = random_scales(n, spec.data, spec.seed + 100);
    token_scales_ = random_scales(spec.one_token_scale ? 1 : m, spec.data, spec.seed + 200);
  }
  const bool geglu = spec.output == packed_fp8::Output::kGeglu;
  packed_weight_ = pack(to_device(weight_codes_), n, k, geglu ? 2 : 1);
  token_rows_ = to_device(token_codes_);
  packed_tokens_ = pack(token_rows_, m, k);
  if (geglu) {
    for (int64_t row = 0; row < n / 2; ++row) weight_scales_[static_cast<size_t>(row)] *= 0x1p-5F;
  }
  std::vector<float> packed_scales = weight_scales_;
  for (int64_t row = 0; geglu && row < n; ++row) {
    packed_scales[static_cast<size_t>(packed_row(row))] = weight_scales_[static_cast<size_t>(row)];
  }
  device_weight_scales_ = to_device(packed_scales);
  device_token_scales_ = to_device(token_scales_);
}

int64_t GemmCase::packed_row(int64_t row) const {
  if (spec_.output == packed_fp8::Output::kRows) return row;
  const int64_t inner = spec_.shape.n / 2;
  return packed_fp8::part_row(row < inner ? 0 : packed_fp8::kGroupRows, row % inner, 2);
}

packed_fp8::GemmPlan GemmCase::plan() const {
  return device_gemm().plan(spec_.shape, spec_.scaling, spec_.output);
}

packed_fp8::PackedWeight GemmCase::weight() const {
  return {.packed = packed_weight_.data(),
          .n = spec_.shape.n,
          .k = spec_.shape.k,
          .scaling = spec_.scaling,
          .scales = device_weight_scales_.data()};
}

packed_fp8::PackedTokens GemmCase::tokens() const {
  return {.packed = packed_tokens_.data(),
          .m = spec_.shape.m,
          .scales = device_token_scales_.data(),
          .scale_stride = token_scale_stride_};
}

void GemmCase::pack_tokens(cudaStream_t stream) {
  packed_fp8::pack_rows({.source = token_rows_.data(),
                         .row_stride = spec_.shape.k,
                         .rows = spec_.shape.m,
                         .columns = spec_.shape.k,
                         .packed = packed_tokens_.data()},
                        stream);
}

void GemmCase::set_weight(int64_t row, int64_t column, uint8_t code) {
  weight_codes_[static_cast<size_t>(row * spec_.shape.k + column)] = code;
  set_code(packed_weight_, spec_.shape.k, packed_row(row), column, code);
}

void GemmCase::set_token(int64_t row, int64_t column, uint8_t code) {
  token_codes_[static_cast<size_t>(row * spec_.shape.k + column)] = code;
  set_code(packed_tokens_, spec_.shape.k, row, column, code);
}

GemmOutput GemmCase::run(const packed_fp8::GemmPlan& plan, DType dtype, cudaStream_t stream, int64_t padding) {
  const auto [m, n, k] = spec_.shape;
  const int64_t stride = n + padding;
  const int64_t bytes = dtype_bytes(dtype);
  DeviceBuffer<uint8_t> buffer(ceil_divide(m * stride * bytes, 4) * 4);
  check_cuda(cudaMemset(buffer.data(), 0xFF, buffer.bytes()), "cudaMemset");
  check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  TensorView out(buffer.data(), dtype, {m, n}, {.kind = Device::Kind::kCuda, .index = 0});
  out.strides[0] = stride;
  device_gemm().run(plan, weight(), tokens(), out, device_workspace(), stream);
  check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  const std::vector<uint8_t> written = to_host(buffer);
  GemmOutput output;
  output.bits.resize(written.size() / 4);
  std::memcpy(output.bits.data(), written.data(), written.size());
  output.values.resize(static_cast<size_t>(m * n));
  for (int64_t row = 0; row < m; ++row) {
    for (int64_t column = 0; column < stride; ++column) {
      const uint8_t* from = written.data() + (row * stride + column) * bytes;
      if (column >= n) {
        EXPECT_TRUE(std::all_of(from, from + bytes, [](uint8_t b) { return b == 0xFF; })) << "padding of row " << row;
        continue;
      }
      float& value = output.values[static_cast<size_t>(row * n + column)];
      if (dtype == DType::kBF16) {
        Bf16 narrow;
        std::memcpy(&narrow, from, 2);
        value = to_float(narrow);
      } else {
        std::memcpy(&value, from, 4);
      }
    }
  }
  return output;
}

std::vector<float> GemmCase::run_geglu(const packed_fp8::GemmPlan& plan, cudaStream_t stream, int64_t padding) {
  const auto [m, n, k] = spec_.shape;
  const int64_t inner = n / 2;
  const int64_t stride = inner + padding;
  const DeviceBuffer<Bf16> rows(m * stride);
  check_cuda(cudaMemset(rows.data(), 0xFF, rows.bytes()), "cudaMemset");
  check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  TensorView out(rows.data(), DType::kBF16, {m, inner}, {.kind = Device::Kind::kCuda, .index = 0});
  out.strides[0] = stride;
  device_gemm().run_geglu(plan, weight(), tokens(), out, device_workspace(), stream);
  check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  const std::vector<Bf16> written = to_host(rows);
  std::vector<float> values;
  for (int64_t i = 0; i < m * stride; ++i) {
    const Bf16 value = written[static_cast<size_t>(i)];
    if (i % stride < inner) {
      values.push_back(to_float(value));
    } else {
      EXPECT_EQ(value.bits, 0xFFFF) << "padding of token " << i / stride;
    }
  }
  return values;
}

std::vector<double> GemmCase::expected(const std::vector<int64_t>& rows) const {
  const auto [m, n, k] = spec_.shape;
  std::array<float, 256> decoded{};
  for (size_t code = 0; code < decoded.size(); ++code) decoded[code] = e4m3_decode(static_cast<uint8_t>(code));
  std::vector<float> x(token_codes_.size());
  for (size_t i = 0; i < x.size(); ++i) x[i] = decoded[token_codes_[i]];
  const bool blocks = spec_.scaling == Scaling::kBlock;
  const int64_t k_blocks = ceil_divide(k, 128);
  std::vector<double> result(static_cast<size_t>(m) * rows.size());
#pragma omp parallel for schedule(dynamic)
  for (size_t i = 0; i < rows.size(); ++i) {
    std::vector<float> w(static_cast<size_t>(k));
    for (int64_t c = 0; c < k; ++c) {
      w[static_cast<size_t>(c)] = decoded[weight_codes_[static_cast<size_t>(rows[i] * k + c)]];
    }
    for (int64_t token = 0; token < m; ++token) {
      double sum = 0.0;
      for (int64_t block = 0; block < k_blocks; ++block) {
        double part = 0.0;
        for (int64_t c = block * 128; c < std::min(k, block * 128 + 128); ++c) {
          part += static_cast<double>(w[static_cast<size_t>(c)]) *
                  static_cast<double>(x[static_cast<size_t>(token * k + c)]);
        }
        const double scale =
            blocks ? static_cast<double>(weight_scales_[static_cast<size_t>(rows[i] / 128 * k_blocks + block)]) *
                         static_cast<double>(token_scales_[static_cast<size_t>(block * token_scale_stride_ + token)])
                   : 1.0;
        sum += part * scale;
      }
      if (!blocks) {
        sum *= static_cast<double>(weight_scales_[static_cast<size_t>(rows[i])]) *
               static_cast<double>(token_scales_[static_cast<size_t>(token * token_scale_stride_)]);
      }
      result[static_cast<size_t>(token) * rows.size() + i] = sum;
    }
  }
  return result;
}

std::vector<double> GemmCase::expected() const {
  std::vector<int64_t> rows(static_cast<size_t>(spec_.shape.n));
  std::iota(rows.begin(), rows.end(), 0);
  return expected(rows);
}

std::vector<double> GemmCase::expected_geglu() const {
  const std::vector<double> sums = expected();
  const auto inner = static_cast<size_t>(spec_.shape.n / 2);
  std::vector<double> result;
  for (size_t token = 0; token < static_cast<size_t>(spec_.shape.m); ++token) {
    const double* const gate = sums.data() + token * 2 * inner;
    for (size_t i = 0; i < inner; ++i) {
      const double u = std::sqrt(2.0 / std::numbers::pi) * (gate[i] + 0.044715 * std::pow(gate[i], 3));
      result.push_back(gate[i] / (1.0 + std::exp(-2.0 * u)) * gate[inner + i]);
    }
  }
  return result;
}

}  // namespace quaver::testing
