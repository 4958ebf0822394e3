#include "core/accumulator.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/e4m3.h"

namespace quaver {
namespace {

constexpr int kBlock = 32;              // lanes of one pass: a vector register of int8 exponents
constexpr int8_t kZeroExponent = -110;  // of a zero: any sum with another exponent stays below kExponentFloor
constexpr int32_t kExponentFloor = -100;

using Floats [[gnu::vector_size(32)]] = float;
using Ints [[gnu::vector_size(32)]] = int32_t;
using Bytes32 [[gnu::vector_size(32)]] = int8_t;
using Bytes8 [[gnu::vector_size(8)]] = int8_t;
constexpr int kGroup = 8;  // lanes of Floats

template <class Vector, class T>
Vector load(const T* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof(vector));
  return vector;
}

template <class Vector, class T>
void store(T* to, const Vector& vector) {
  std::memcpy(to, &vector, sizeof(vector));
}

template <class To, class From>
To bits_as(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

struct Decoded {
  float value = 0.0F;
  int8_t exponent = kZeroExponent;
  bool nan = false;
};

constexpr std::array<Decoded, 256> kDecoded = [] {
  std::array<Decoded, 256> table{};
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<uint8_t>(code);
    Decoded& entry = table[static_cast<size_t>(code)];
    entry.nan = e4m3_is_nan(byte);
    if (entry.nan || (byte & 0x7FU) == 0) continue;
    entry.value = e4m3_decode(byte);
    entry.exponent = static_cast<int8_t>(std::max(byte >> 3 & 15, 1) - 7);
  }
  return table;
}();

int padded(int count, int to) {
  return (count + to - 1) / to * to;
}

}  // namespace

MmaRow::MmaRow(int depth)
    : values_(static_cast<size_t>(padded(depth, kMmaDepth)), 0.0F),
      exponents_(values_.size(), kZeroExponent),
      nan_(values_.size(), 0) {}

void MmaRow::set(int k, uint8_t code) {
  const Decoded& decoded = kDecoded[code];
  const auto at = static_cast<size_t>(k);
  values_[at] = decoded.value;
  exponents_[at] = decoded.exponent;
  nan_[at] = decoded.nan ? 1 : 0;
}

MmaMatrix::MmaMatrix(int depth, int lanes)
    : depth_(depth),
      padded_lanes_(padded(lanes, kBlock)),
      values_(static_cast<size_t>(padded(depth, kMmaDepth)) * static_cast<size_t>(padded_lanes_), 0.0F),
      exponents_(values_.size(), kZeroExponent),
      nan_(values_.size() / kMmaDepth, 0) {}

void MmaMatrix::clear() {
  std::fill(values_.begin(), values_.end(), 0.0F);
  std::fill(exponents_.begin(), exponents_.end(), kZeroExponent);
  std::fill(nan_.begin(), nan_.end(), uint8_t{0});
  any_nan_ = false;
}

void MmaMatrix::set(int k, int lane, uint8_t code) {
  const Decoded& decoded = kDecoded[code];
  const size_t at = static_cast<size_t>(k) * static_cast<size_t>(padded_lanes_) + static_cast<size_t>(lane);
  values_[at] = decoded.value;
  exponents_[at] = decoded.exponent;
  if (decoded.nan) {
    nan_[static_cast<size_t>(k / kMmaDepth) * static_cast<size_t>(padded_lanes_) + static_cast<size_t>(lane)] = 1;
    any_nan_ = true;
  }
}

void MmaMatrix::multiply(const MmaRow& a, int first, int last, bool fresh, Accumulator accumulator,
                         std::span<float> d) const {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (int k0 = first; k0 < last; k0 += kMmaDepth) {
    const bool starts = fresh && k0 == first;
    if (accumulator == Accumulator::kHardware13) {
      step_hardware(a, k0, starts, d.data());
    } else {
      step_fp32(a, k0, starts, d.data());
    }
    if (any_nan_) {
      const uint8_t* nan = nan_.data() + static_cast<size_t>(k0 / kMmaDepth) * static_cast<size_t>(padded_lanes_);
      for (size_t lane = 0; lane < d.size(); ++lane) d[lane] = nan[lane] != 0 ? kNan : d[lane];
    }
    const auto* row_nan = a.nan_.data() + k0;
    if (std::any_of(row_nan, row_nan + kMmaDepth, [](uint8_t nan) { return nan != 0; })) {
      std::fill(d.begin(), d.end(), kNan);
    }
  }
}

void MmaMatrix::step_hardware(const MmaRow& a, int k0, bool fresh, float* d) const {
  // Zeros of A add nothing, whatever the lane holds.
  std::array<int, kMmaDepth> terms{};
  size_t num_terms = 0;
  for (int k = k0; k < k0 + kMmaDepth; ++k) {
    if (a.values_[static_cast<size_t>(k)] != 0.0F) terms[num_terms++] = k;
  }
  const std::span<const int> used(terms.data(), num_terms);
  const auto stride = static_cast<size_t>(padded_lanes_);
  for (size_t block = 0; block < stride; block += kBlock) {
    Bytes32 top = Bytes32{} + static_cast<int8_t>(kExponentFloor);
    for (const int k : used) {
      const auto sum = load<Bytes32>(exponents_.data() + static_cast<size_t>(k) * stride + block) +
                       a.exponents_[static_cast<size_t>(k)];
      top = sum > top ? sum : top;
    }
    std::array<int8_t, kBlock> tops{};
    store(tops.data(), top);
    for (size_t lane = block; lane < block + kBlock; lane += kGroup) {
      const Floats c = fresh ? Floats{} : load<Floats>(d + lane);
      Ints exponent = __builtin_convertvector(load<Bytes8>(tops.data() + lane - block), Ints);
      const Ints c_exponent = (bits_as<Ints>(c) >> 23 & 0xFF) - 127;  // -127 for a zero
      exponent = c_exponent > exponent ? c_exponent : exponent;
      const auto inverse_unit = bits_as<Floats>((127 + kAccumulatorFractionBits - exponent) << 23);
      const auto unit = bits_as<Floats>((127 - kAccumulatorFractionBits + exponent) << 23);
      const auto is_nan = c != c;
      // Conversion to integer truncates toward zero; |term| < 2^15 units, so 33 of them add exactly in int32.
      Ints sum = __builtin_convertvector(is_nan ? Floats{} : c * inverse_unit, Ints);
      const float* column = values_.data() + lane;
      for (const int k : used) {
        const auto b = load<Floats>(column + static_cast<size_t>(k) * stride);
        sum += __builtin_convertvector(b * a.values_[static_cast<size_t>(k)] * inverse_unit, Ints);
      }
      const Floats exact = __builtin_convertvector(sum, Floats) * unit;
      constexpr int32_t kKeptBits = -(1 << (23 - kAccumulatorFractionBits));
      store(d + lane, is_nan ? c : bits_as<Floats>(bits_as<Ints>(exact) & kKeptBits));
    }
  }
}

void MmaMatrix::step_fp32(const MmaRow& a, int k0, bool fresh, float* d) const {
  const auto stride = static_cast<size_t>(padded_lanes_);
  if (fresh) std::fill_n(d, stride, 0.0F);
  for (int k = k0; k < k0 + kMmaDepth; ++k) {
    const float value = a.values_[static_cast<size_t>(k)];
    if (value == 0.0F) continue;
    const float* b = values_.data() + static_cast<size_t>(k) * stride;
    for (size_t lane = 0; lane < stride; ++lane) d[lane] = std::fma(value, b[lane], d[lane]);
  }
}

}  // namespace quaver
