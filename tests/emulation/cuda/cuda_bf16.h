// __nv_bfloat16 and the conversions that kernels use, on core/bf16.h.
#pragma once

#include <cmath>

#include "core/bf16.h"
#include "cuda_runtime_api.h"

struct __nv_bfloat16 {
  quaver::Bf16 value;
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};

inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  return {quaver::to_bf16(x)};
}
inline __nv_bfloat16 __float2bfloat16(float x) {
  return {quaver::to_bf16(x)};
}
inline float __bfloat162float(__nv_bfloat16 x) {
  return quaver::to_float(x.value);
}
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) {
  return x.value.bits;
}
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) {
  return {quaver::Bf16{bits}};
}
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) {
  return {x, y};
}
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
inline __nv_bfloat162 __float22bfloat162_rn(float2 x) {
  return __floats2bfloat162_rn(x.x, x.y);
}
inline __nv_bfloat162 __float2bfloat162_rn(float x) {
  return __floats2bfloat162_rn(x, x);
}
inline float2 __bfloat1622float2(__nv_bfloat162 x) {
  return {__bfloat162float(x.x), __bfloat162float(x.y)};
}
inline float __low2float(__nv_bfloat162 x) {
  return __bfloat162float(x.x);
}
inline float __high2float(__nv_bfloat162 x) {
  return __bfloat162float(x.y);
}
inline __nv_bfloat162 __hmax2(__nv_bfloat162 a, __nv_bfloat162 b) {
  return __floats2bfloat162_rn(fmaxf(__low2float(a), __low2float(b)), fmaxf(__high2float(a), __high2float(b)));
}
inline __nv_bfloat162 __habs2(__nv_bfloat162 x) {
  return __floats2bfloat162_rn(fabsf(__low2float(x)), fabsf(__high2float(x)));
}
