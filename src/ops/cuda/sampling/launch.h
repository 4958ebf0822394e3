// Host side of the sampling kernels. All asynchronous, graph-safe, without state.
#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "ops/cuda/sampling/params.h"

namespace quaver::sampling {

/// Lets the kernels use as much shared memory as they need, on the current device.
void prepare_kernels();

/// The kernels of one draw() over `rows` rows; those for cuts and p.logprobs only where asked for.
void launch_draw(const Parameters& p, int64_t rows, bool cuts, cudaStream_t stream);

/// token_ids[i] = last token of slots[row_slots[i]], where that is not -1.
void launch_feedback(const Slot* slots, const int32_t* row_slots, int64_t count, int32_t* token_ids,
                     cudaStream_t stream);

/// Writes a slot, its marks (over zeros) and its biases. The host memory is read before these return.
void launch_start(Slot* to, const Slot& slot, cudaStream_t stream);
void launch_marks(uint16_t* to, std::span<const Mark> marks, cudaStream_t stream);
void launch_biases(TokenLogit* to, std::span<const TokenLogit> biases, cudaStream_t stream);

}  // namespace quaver::sampling
