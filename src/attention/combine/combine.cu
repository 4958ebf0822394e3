#include "attention/combine/combine.h"

#include "attention/combine/merge.cuh"
#include "attention/tiles.h"
#include "core/with_value.h"
#include "ptx/launch.cuh"

namespace quaver::combine {
namespace {

constexpr int kThreads = 128;
constexpr int kElements = 4 * kThreads;  // of one CTA and pass

struct KernelParameters {
  Partials partials{};
  Output output{};
  schedule::WorkListView work{};
};

/// blockIdx.x: cut items in turns; blockIdx.y: elements of an item in turns.
template <int kHeadDim>
__global__ void __launch_bounds__(kThreads, 3) quaver_combine(const __grid_constant__ KernelParameters p) {
  ptx::launch_dependents();
  ptx::grid_dependency_wait();
  const int num_cuts = __ldcg(p.work.num_cuts);
#pragma unroll 1
  for (int i = static_cast<int>(blockIdx.x); i < num_cuts; i += static_cast<int>(gridDim.x)) {
    const auto* words = reinterpret_cast<const int4*>(p.work.cuts + i);
    const int4 item = __ldcg(words);
    const int4 place = __ldcg(words + 1);
    const CutItem cut{.slots = {.first = place.y, .rest = place.z},
                      .num_parts = item.x,
                      .sequence = item.y,
                      .head = item.z,
                      .query_begin = item.w,
                      .rows = place.x};
    const auto stride = static_cast<int>(gridDim.y) * kElements;
#pragma unroll 1
    for (int e = static_cast<int>(blockIdx.y) * kElements + static_cast<int>(threadIdx.x) * 4; e < cut.rows * kHeadDim;
         e += stride) {
      merge_parts<kHeadDim, 12, 20>(p.partials, p.output, cut, e);
    }
  }
}

}  // namespace

void run_combine(int head_dim, const Partials& partials, const Output& output, const schedule::WorkListView& work,
                 int max_rows, int num_ctas, cudaStream_t stream) {
  with_value<64, 96, 128, 192, 256, 512>(head_dim, [&](auto dim) {
    const dim3 grid(static_cast<unsigned>(num_ctas),
                    static_cast<unsigned>((max_rows * dim.value + kElements - 1) / kElements));
    launch_programmatic(quaver_combine<dim.value>, grid, kThreads, 0, stream,
                        KernelParameters{.partials = partials, .output = output, .work = work});
  });
}

}  // namespace quaver::combine
