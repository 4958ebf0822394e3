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

/// blockIdx.x: piece; blockIdx.y: its elements in turns.
template <int kHeadDim>
__global__ void __launch_bounds__(kThreads, 4) quaver_combine(const __grid_constant__ KernelParameters p) {
  ptx::launch_dependents();
  ptx::grid_dependency_wait();
  const auto piece = static_cast<int>(blockIdx.x);
  const auto* words = reinterpret_cast<const int4*>(p.work.cuts + piece);
  const int4 cut = __ldcg(words);
  if (cut.x == 0) return;
  const CutItem item{.slots = schedule::cut_slots(p.work.max_pieces, piece),
                     .num_parts = cut.x,
                     .sequence = cut.y,
                     .head = cut.z,
                     .query_begin = cut.w,
                     .rows = __ldcg(words + 1).x};
  const auto stride = static_cast<int>(gridDim.y) * kElements;
#pragma unroll 1
  for (int e = static_cast<int>(blockIdx.y) * kElements + static_cast<int>(threadIdx.x) * 4; e < item.rows * kHeadDim;
       e += stride) {
    merge_parts<kHeadDim>(p.partials, p.output, item, e);
  }
}

}  // namespace

void run_combine(int head_dim, const Partials& partials, const Output& output, const schedule::WorkListView& work,
                 int max_rows, cudaStream_t stream) {
  with_value<64, 96, 128, 192, 256, 512>(head_dim, [&](auto dim) {
    const dim3 grid(static_cast<unsigned>(work.max_pieces),
                    static_cast<unsigned>((max_rows * dim.value + kElements - 1) / kElements));
    launch_programmatic(quaver_combine<dim.value>, grid, kThreads, 0, stream,
                        KernelParameters{.partials = partials, .output = output, .work = work});
  });
}

}  // namespace quaver::combine
