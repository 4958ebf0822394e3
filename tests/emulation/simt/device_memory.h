// What cudaMalloc() gave.
#pragma once

#include <cstddef>

#include "simt/early_start.h"

namespace quaver::simt {

/// All `bytes` lie in one allocation.
[[nodiscard]] bool in_device_memory(const void* begin, int bytes);

/// A copy of all of it but what cudaMallocHost() gave.
[[nodiscard]] MemoryImage memory_image();

}  // namespace quaver::simt
