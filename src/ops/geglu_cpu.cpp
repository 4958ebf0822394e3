#include <algorithm>
#include <array>
#include <numbers>

#include "core/simd.h"
#include "ops/geglu.h"

namespace quaver {
namespace {

using simd::F32x8;

constexpr int64_t kLanes = 8;
constexpr int64_t kBlock = 4096;  // values of one work item

/// x/2 (1 + tanh u) is x / (1 + e^-2u), which keeps its relative accuracy where tanh u is close to -1.
F32x8 gelu_tanh(F32x8 x) {
  // -2 sqrt(2/pi) / ln 2, so that e^-2u = 2^exponent.
  constexpr float kScale = -std::numbers::log2e_v<float> * 1.59576912F;
  const F32x8 exponent = x * simd::fma(x * x, simd::broadcast(0.044715F), simd::broadcast(1.0F)) * kScale;
  const F32x8 limit = simd::broadcast(126.0F);  // 2^126 is finite, and x / 2^126 is as good as 0
  return x / (1.0F + simd::exp2(simd::select(exponent > limit, limit, exponent)));
}

void geglu_block(float* gate, const float* up, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    simd::store(gate + i, gelu_tanh(simd::load<F32x8>(gate + i)) * simd::load<F32x8>(up + i));
  }
  if (i == count) return;
  std::array<float, kLanes> padded{};  // the tail goes through the same arithmetic
  std::copy(gate + i, gate + count, padded.begin());
  simd::store(padded.data(), gelu_tanh(simd::load<F32x8>(padded.data())));
  for (size_t lane = 0; i < count; ++i, ++lane) gate[i] = padded[lane] * up[i];
}

}  // namespace

void geglu(float* gate, const float* up, int64_t count) {
#pragma omp parallel for schedule(static) if (count > 2 * kBlock)
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    geglu_block(gate + begin, up + begin, std::min(kBlock, count - begin));
  }
}

}  // namespace quaver
