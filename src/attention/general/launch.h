// Host side of the general kernel: any head dims, cache dtype, rows, mask and batch, in FP32. No state, no workspace.
#pragma once

#include <cuda_runtime_api.h>

#include "core/device_info.h"
#include "quaver/attention.h"

namespace quaver::general {

/// Prepares the current device. Throws Error(kUnsupported) for head dims whose Dk + 8 Dv floats do not fit the shared
/// memory of a CTA (Dk = Dv = 6,400 do).
void prepare(const AttentionProblem& problem, const DeviceInfo& device);

/// One layer. The caller has checked `args` against the problem; lengths, query_start and page ids are trusted.
void run(const AttentionProblem& problem, const AttentionArgs& args, cudaStream_t stream);

}  // namespace quaver::general
