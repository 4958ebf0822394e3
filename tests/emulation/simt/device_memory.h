// What cudaMalloc() gave.
#pragma once

#include <cstddef>

namespace quaver::simt {

/// All `bytes` lie in one allocation.
[[nodiscard]] bool in_device_memory(const void* begin, int bytes);

}  // namespace quaver::simt
