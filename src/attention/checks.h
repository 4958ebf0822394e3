// The checks of a call's tensors, in front of every kernel.
#pragma once

#include "quaver/attention.h"

namespace quaver {

/// Rank, shape, dtype, device, strides and alignment of every tensor: what the host can see wherever the memory is.
/// Throws Error(kInvalidArgument) that names the tensor, its value and what was expected.
void check_tensors(const AttentionProblem& problem, const AttentionArgs& args);

/// Lengths, query_start and the page ids that are used, of tensors in host memory. Throws likewise. The CUDA entry
/// points trust these values.
void check_lengths(const AttentionProblem& problem, const AttentionArgs& args);

}  // namespace quaver
