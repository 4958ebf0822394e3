#include <algorithm>
#include <array>

#include "core/simd.h"
#include "ops/geglu.h"

namespace quaver {
namespace {

using simd::F32x8;

constexpr int64_t kBlock = 4096;  // values of one work item

/// x/2 (1 + tanh u) is x / (1 + e^-2u), which keeps its relative accuracy where tanh u is close to -1.
F32x8 gelu_tanh(F32x8 x) {
  constexpr float kMinus2Sqrt2OverPi = -1.59576912160573F;
  const F32x8 cubic = x * simd::fma(x * x, simd::broadcast(0.044715F), simd::broadcast(1.0F));
  const F32x8 exponent = cubic * simd::broadcast(kMinus2Sqrt2OverPi);
  const F32x8 limit = simd::broadcast(88.0F);  // e^88 is finite, and x / e^88 is 0 to FP32's range
  return x / (simd::broadcast(1.0F) + simd::exp(exponent > limit ? limit : exponent));
}

void geglu_block(float* gate, const float* up, int64_t count) {
  int64_t i = 0;
  for (; i + simd::kLanes <= count; i += simd::kLanes) {
    simd::store(gate + i, gelu_tanh(simd::load(gate + i)) * simd::load(up + i));
  }
  if (i == count) return;
  std::array<float, simd::kLanes> padded{};  // the tail goes through the same arithmetic
  std::copy(gate + i, gate + count, padded.begin());
  simd::store(padded.data(), gelu_tanh(simd::load(padded.data())));
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
