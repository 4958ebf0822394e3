// Eight FP32 lanes for the CPU kernels: GCC/Clang vector extensions, so +, -, *, /, comparisons and ?: are the
// language's own. Lane order is fixed, so every reduction here gives the same bits on every run and machine.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/bf16.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace quaver::simd {

inline constexpr int kLanes = 8;

using F32x8 = float __attribute__((vector_size(32)));
using I32x8 = int32_t __attribute__((vector_size(32)));
using U32x8 = uint32_t __attribute__((vector_size(32)));
using U16x8 = uint16_t __attribute__((vector_size(16)));
using U8x8 = uint8_t __attribute__((vector_size(8)));

[[nodiscard]] inline F32x8 broadcast(float value) {
  return F32x8{value, value, value, value, value, value, value, value};
}

[[nodiscard]] inline F32x8 load(const float* source) {
  F32x8 lanes;
  std::memcpy(&lanes, source, sizeof(lanes));
  return lanes;
}

[[nodiscard]] inline F32x8 load(const Bf16* source) {
  U16x8 bits;
  std::memcpy(&bits, source, sizeof(bits));
  return std::bit_cast<F32x8>(__builtin_convertvector(bits, U32x8) << 16U);
}

/// Eight E4M3 codes; NaN codes stay NaN. Exponent and mantissa move to FP32's places. Subnormals are built as
/// 2^-6 * (1 + m/8) - 2^-6, because a product with an FP32 subnormal costs 100 cycles and more.
[[nodiscard]] inline F32x8 load_e4m3(const uint8_t* source) {
  U8x8 codes;
  std::memcpy(&codes, source, sizeof(codes));
#if defined(__AVX2__)  // GCC 12 unpacks the conversion below byte by byte
  const auto wide = std::bit_cast<U32x8>(_mm256_cvtepu8_epi32(__m128i{std::bit_cast<int64_t>(codes), 0}));
#else
  const U32x8 wide = __builtin_convertvector(codes, U32x8);
#endif
  const U32x8 magnitude = wide & 0x7FU;
  const U32x8 sign = (wide & 0x80U) << 24U;
  const auto subnormal = std::bit_cast<U32x8>(magnitude < 8U);
  const auto nan = std::bit_cast<U32x8>(magnitude == 0x7FU) & 0x7FC00000U;
  const U32x8 shifted = (magnitude << 20U) + (120U << 23U) + (subnormal & (1U << 23U));
  const F32x8 value = std::bit_cast<F32x8>(shifted) - std::bit_cast<F32x8>(subnormal & 0x3C800000U);  // 2^-6
  return std::bit_cast<F32x8>(std::bit_cast<U32x8>(value) | nan | sign);
}

inline void store(float* target, F32x8 lanes) {
  std::memcpy(target, &lanes, sizeof(lanes));
}

/// a * b + c, rounded once.
[[nodiscard]] inline F32x8 fma(F32x8 a, F32x8 b, F32x8 c) {
#if defined(__AVX2__) && defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#else
  for (int lane = 0; lane < kLanes; ++lane) c[lane] = std::fma(a[lane], b[lane], c[lane]);
  return c;
#endif
}

/// Sum of the lanes as ((0+4)+(2+6)) + ((1+5)+(3+7)).
[[nodiscard]] inline float sum(F32x8 lanes) {
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

/// e^x for x <= 88, relative error below 2e-7; 0 below -87.
[[nodiscard]] inline F32x8 exp(F32x8 x) {
  constexpr float kLog2E = 1.44269504088896341F;
  constexpr float kLn2High = 0.693147182F;     // ln 2 rounded to FP32
  constexpr float kLn2Low = -1.90465430e-9F;   // ln 2 - kLn2High
  const F32x8 shifter = broadcast(0x1.8p23F);  // adding it leaves the nearest integer in the low mantissa bits
  const F32x8 shifted = fma(x, broadcast(kLog2E), shifter);
  const F32x8 n = shifted - shifter;
  const F32x8 r = fma(n, broadcast(-kLn2Low), fma(n, broadcast(-kLn2High), x));
  // Taylor series on |r| <= 0.3466: the first term left out is r^8/8! < 6e-9.
  F32x8 series = broadcast(1.0F / 5040);
  for (const float coefficient : {1.0F / 720, 1.0F / 120, 1.0F / 24, 1.0F / 6, 0.5F, 1.0F, 1.0F}) {
    series = fma(series, r, broadcast(coefficient));
  }
  const U32x8 power = (std::bit_cast<U32x8>(shifted) + 127U) << 23U;
  const F32x8 result = series * std::bit_cast<F32x8>(power);
  return x < broadcast(-87.0F) ? broadcast(0.0F) : result;
}

}  // namespace quaver::simd
