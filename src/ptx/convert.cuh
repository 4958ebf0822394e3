// E4M3 conversions and exp2. One instruction per function; the *4 forms are two of them.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

namespace quaver::ptx {

/// PTX ISA "ex2.approx.ftz.f32": 2^x; exact for integer x >= -126, 0 for -inf.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// PTX ISA "rcp.approx.ftz.f32": 1/x to 1 ulp.
__device__ __forceinline__ float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// PTX ISA "cvt.rn.satfinite.e4m3x2.f32": nearest even, saturating to ±448; `low` goes to the low byte.
__device__ __forceinline__ uint16_t to_e4m3x2(float low, float high) {
  uint16_t codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  return codes;
}

/// Four values to four E4M3 bytes, the first in the lowest byte.
__device__ __forceinline__ uint32_t to_e4m3x4(float a, float b, float c, float d) {
  return static_cast<uint32_t>(to_e4m3x2(a, b)) | static_cast<uint32_t>(to_e4m3x2(c, d)) << 16;
}

/// PTX ISA "cvt.rn.f16x2.e4m3x2": two E4M3 codes to floats; exact, every E4M3 value is an FP16 value.
__device__ __forceinline__ float2 from_e4m3x2(uint16_t codes) {
  uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(codes));
  return __half22float2(__halves2half2(__ushort_as_half(static_cast<uint16_t>(halves)),
                                       __ushort_as_half(static_cast<uint16_t>(halves >> 16))));
}

}  // namespace quaver::ptx
