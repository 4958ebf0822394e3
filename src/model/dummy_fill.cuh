// The kernel behind dummy_fill().
#pragma once

#include "model/dummy.h"
#include "model/dummy_fill.h"

namespace quaver {

inline constexpr int kDummyThreads = 256;

/// Four values of one draw.
template <class T>
struct alignas(kDummyDraw * sizeof(T)) DummyQuad {
  T values[kDummyDraw];
};

/// A thread a draw. `aligned`: of `out`, to four values.
template <class T>
__global__ void __launch_bounds__(kDummyThreads)
    dummy_values(const __grid_constant__ DummyFillArgs<T> args, bool aligned) {
  const int64_t draws = (args.count + kDummyDraw - 1) / kDummyDraw;
  for (int64_t draw = blockIdx.x * int64_t{kDummyThreads} + threadIdx.x; draw < draws;
       draw += int64_t{gridDim.x} * kDummyThreads) {
    const uint64_t bits = dummy_bits(args.stream, draw);
    DummyQuad<T> quad;
    for (int i = 0; i < kDummyDraw; ++i) quad.values[i] = args.table[bits >> 16 * i & 0xFFFF];
    const int64_t first = draw * kDummyDraw;
    if (aligned && first + kDummyDraw <= args.count) {
      *reinterpret_cast<DummyQuad<T>*>(args.out + first) = quad;
    } else {
      for (int i = 0; i < kDummyDraw && first + i < args.count; ++i) args.out[first + i] = quad.values[i];
    }
  }
}

}  // namespace quaver
