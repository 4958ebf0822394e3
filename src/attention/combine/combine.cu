#include "attention/combine/combine.h"

#include "attention/combine/combine.cuh"
#include "core/cuda.h"
#include "core/with_value.h"

namespace quaver::combine {

void run_combine(int head_dim, const Partials& partials, const Output& output, const schedule::CutListView& cuts,
                 int max_rows, int num_ctas, cudaStream_t stream) {
  with_value<64, 96, 128, 192, 256, 512>(head_dim, [&](auto dim) {
    const dim3 grid(static_cast<unsigned>(num_ctas),
                    static_cast<unsigned>((max_rows * dim.value + kCombineElements - 1) / kCombineElements));
    launch_programmatic(quaver_combine<dim.value>, grid, kCombineThreads, 0, stream,
                        CombineParameters{.partials = partials, .output = output, .cuts = cuts});
  });
}

}  // namespace quaver::combine
