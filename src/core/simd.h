// Eight floats at a time, on the compilers' vector extension: one source for x86 and Arm. Every lane is computed alike,
// so results do not depend on the instruction set (all FMAs are explicit).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numbers>

#include "core/e4m3.h"
#include "core/exp2.h"

#if defined(__FMA__) && defined(__F16C__) && defined(__AVX2__)
#include <immintrin.h>
#define QUAVER_CPU_AVX2 1
#endif

namespace quaver::simd {

using F32x8 [[gnu::vector_size(32)]] = float;
using I32x8 [[gnu::vector_size(32)]] = int32_t;
using U32x8 [[gnu::vector_size(32)]] = uint32_t;
using U16x8 [[gnu::vector_size(16)]] = uint16_t;
using U8x16 [[gnu::vector_size(16)]] = uint8_t;

template <class Vector, class Element>
[[gnu::always_inline]] inline Vector load(const Element* from) {
  Vector value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

[[gnu::always_inline]] inline void store(float* to, F32x8 value) {
  std::memcpy(to, &value, sizeof value);
}

[[gnu::always_inline]] inline F32x8 broadcast(float value) {
  return F32x8{value, value, value, value, value, value, value, value};
}

[[gnu::always_inline]] inline F32x8 fma(F32x8 a, F32x8 b, F32x8 c) {
#if defined(QUAVER_CPU_AVX2)
  return _mm256_fmadd_ps(a, b, c);
#else
  for (int i = 0; i < 8; ++i) c[i] = std::fma(a[i], b[i], c[i]);
  return c;
#endif
}

[[gnu::always_inline]] inline F32x8 select(I32x8 mask, F32x8 yes, F32x8 no) {
  return std::bit_cast<F32x8>((mask & std::bit_cast<I32x8>(yes)) | (~mask & std::bit_cast<I32x8>(no)));
}

/// Lane-wise a > b ? a : b, so that a NaN in `a` gives b.
[[gnu::always_inline]] inline F32x8 max(F32x8 a, F32x8 b) {
  return select(a > b, a, b);
}

/// Sums and maxima over the lanes in one fixed order.
[[gnu::always_inline]] inline float sum_lanes(F32x8 v) {
  return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

[[gnu::always_inline]] inline float max_lanes(F32x8 v) {
  float result = v[0];
  for (int i = 1; i < 8; ++i) result = v[i] > result ? v[i] : result;
  return result;
}

/// 2^x = power * (1 + rest) with power = 2^round(x).
struct Exp2Parts {
  F32x8 power;
  F32x8 rest;
};

[[gnu::always_inline]] inline Exp2Parts exp2_parts(F32x8 x) {
  const F32x8 shifted = x + kRoundToInteger;
  const F32x8 f = x - (shifted - kRoundToInteger);  // -0.5 … 0.5
  const F32x8 p = exp2_series(broadcast(kExp2SeriesHighest), [f](F32x8 q, float c) { return fma(q, f, broadcast(c)); });
  return {.power = std::bit_cast<F32x8>((std::bit_cast<U32x8>(shifted) + 127U) << 23), .rest = p * f};
}

/// 2^x for x <= 127, relative error below 2e-7; 0 below x = -126; NaN stays NaN.
[[gnu::always_inline]] inline F32x8 exp2(F32x8 x) {
  const Exp2Parts parts = exp2_parts(x);
  return select(x < -126.0F, broadcast(0.0F), fma(parts.rest, parts.power, parts.power));
}

/// tanh(x) = e / (e + 2) with e = exp(2x) - 1, which loses no digits near 0; relative error below 4e-7.
[[gnu::always_inline]] inline F32x8 tanh(F32x8 x) {
  constexpr float kTwoLog2e = 2 * std::numbers::log2e_v<float>;
  x = select(x > 10.0F, broadcast(10.0F), x);  // tanh(10) rounds to 1; a NaN fails both comparisons and stays
  x = select(x < -10.0F, broadcast(-10.0F), x);
  const Exp2Parts parts = exp2_parts(x * kTwoLog2e);
  const F32x8 e = fma(parts.rest, parts.power, parts.power - 1.0F);
  return e / (e + 2.0F);
}

/// The E4M3 values of 16 codes; 0x7F and 0xFF give NaN.
[[gnu::always_inline]] inline void decode_e4m3(U8x16 codes, F32x8& low, F32x8& high) {
#if defined(QUAVER_CPU_AVX2)
  // s.eeee.mmm shifted into F16's s.0eeee.mmm0000000 has the value / 2^8; F16 conversion is exact.
  const __m256i wide = _mm256_cvtepi8_epi16(std::bit_cast<__m128i>(codes));
  __m256i half = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(static_cast<int16_t>(0xBFFF)));
  const __m256i magnitude = _mm256_and_si256(half, _mm256_set1_epi16(0x7FFF));
  half = _mm256_or_si256(half, _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x3F80)));  // NaN codes: all ones
  low = F32x8(_mm256_cvtph_ps(_mm256_castsi256_si128(half))) * 256.0F;
  high = F32x8(_mm256_cvtph_ps(_mm256_extracti128_si256(half, 1))) * 256.0F;
#else
  for (int i = 0; i < 8; ++i) {
    low[i] = e4m3_decode(codes[i]);
    high[i] = e4m3_decode(codes[i + 8]);
  }
#endif
}

/// Eight BF16 values widened to float.
[[gnu::always_inline]] inline F32x8 widen_bf16(U16x8 bits) {
  return std::bit_cast<F32x8>(__builtin_convertvector(bits, U32x8) << 16);
}

[[gnu::always_inline]] inline void interleave(U8x16 a, U8x16 b, U8x16& low, U8x16& high) {
  low = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  high = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}

[[gnu::always_inline]] inline void interleave(U16x8 a, U16x8 b, U16x8& low, U16x8& high) {
  low = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
  high = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
}

/// Transposes N vectors of N elements: log2(N) rounds of interleaving the upper half with the lower.
template <class Vector, int N>
[[gnu::always_inline]] inline void transpose(Vector (&rows)[N]) {
  Vector next[N];
#pragma GCC unroll 4
  for (int round = 1; round < N; round *= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < N / 2; ++i) interleave(rows[i], rows[i + N / 2], next[2 * i], next[2 * i + 1]);
#pragma GCC unroll 16
    for (int i = 0; i < N; ++i) rows[i] = next[i];
  }
}

}  // namespace quaver::simd
