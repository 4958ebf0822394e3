// The combine kernel, on the device.
#pragma once

#include "attention/combine/merge.cuh"
#include "ptx/launch.cuh"

namespace quaver::combine {

inline constexpr int kCombineThreads = 128;
inline constexpr int kCombineElements = 4 * kCombineThreads;  ///< of one CTA and pass

struct CombineParameters {
  Partials partials{};
  Output output{};
  schedule::CutListView cuts{};
};

/// blockIdx.x: cut items in turns; blockIdx.y: elements of an item in turns.
template <int kHeadDim>
__global__ void __launch_bounds__(kCombineThreads, 3) quaver_combine(const __grid_constant__ CombineParameters p) {
  ptx::launch_dependents();
  ptx::grid_dependency_wait();
  const int num_cuts = __ldcg(p.cuts.count);
#pragma unroll 1
  for (int i = static_cast<int>(blockIdx.x); i < num_cuts; i += static_cast<int>(gridDim.x)) {
    const auto* words = reinterpret_cast<const int4*>(p.cuts.records + i);
    const int4 item = __ldcg(words);
    const int4 place = __ldcg(words + 1);
    const CutItem cut{.slots = {.first = place.y, .rest = place.z},
                      .num_parts = item.x,
                      .sequence = item.y,
                      .head = item.z,
                      .query_begin = item.w,
                      .rows = place.x,
                      .first_row = place.w};
    const auto stride = static_cast<int>(gridDim.y) * kCombineElements;
#pragma unroll 1
    for (int e = static_cast<int>(blockIdx.y) * kCombineElements + static_cast<int>(threadIdx.x) * 4;
         e < cut.rows * kHeadDim; e += stride) {
      merge_parts<kHeadDim, 12, 20>(p.partials, p.output, cut, e);
    }
  }
}

}  // namespace quaver::combine
