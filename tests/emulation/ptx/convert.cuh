// Emulates src/ptx/convert.cuh: same names, same meaning. Approximations are exact to FP32 rounding here.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "core/e4m3.h"
#include "cuda_runtime_api.h"

namespace quaver::ptx {

inline float exp2_approx(float x) {
  const float y = std::exp2(x);
  return y < FLT_MIN ? 0.0F : y;
}
inline float reciprocal_approx(float x) {
  const float y = 1.0F / x;
  return std::fabs(y) < FLT_MIN ? std::copysign(0.0F, y) : y;
}
inline uint16_t to_e4m3x2(float low, float high) {
  return static_cast<uint16_t>(e4m3_encode(low) | e4m3_encode(high) << 8);
}
inline uint32_t to_e4m3x4(float a, float b, float c, float d) {
  return static_cast<uint32_t>(to_e4m3x2(a, b)) | static_cast<uint32_t>(to_e4m3x2(c, d)) << 16;
}
inline float2 from_e4m3x2(uint16_t codes) {
  return {e4m3_decode(static_cast<uint8_t>(codes)), e4m3_decode(static_cast<uint8_t>(codes >> 8))};
}

}  // namespace quaver::ptx
