// Checks of an append's tensors that need no look into memory: shared by the CPU and the CUDA append.
#pragma once

#include "quaver/kv_cache.h"

namespace quaver {

/// Layout, shapes, dtypes, strides, alignment and device of every tensor of an append on `kind`. CUDA takes BF16 rows
/// only, at addresses and strides that divide by 16 bytes for an FP8 cache. Throws Error(kInvalidArgument) that names
/// the tensor, its value and what was expected.
void check_append_tensors(const AppendArgs& args, Device::Kind kind);

}  // namespace quaver
