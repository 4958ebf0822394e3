// The combine kernel: adds up the partial results of items that were cut. Used instead of the in-kernel combine when
// rows * head_dim is so large that one CTA would be the bottleneck.
#pragma once

#include "attention/combine/partials.h"
#include "attention/schedule/cut_list.h"
#include "core/cuda.h"

namespace quaver::combine {

/// Launches for all cut items of a step (without fixed splits: those are combined in the decode kernel). `max_rows`:
/// query rows of an item; `num_ctas`: items that are worked on at a time.
void run_combine(int head_dim, const Partials& partials, const Output& output, const schedule::CutListView& cuts,
                 int max_rows, int num_ctas, cudaStream_t stream);

}  // namespace quaver::combine
