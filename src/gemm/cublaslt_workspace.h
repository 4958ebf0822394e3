// How much memory cuBLASLt's products take: for who sizes memory without a CUDA header.
#pragma once

#include <cstdint>

namespace quaver {

/// Bytes of device memory that a CublasLt owns.
inline constexpr int64_t kCublasLtWorkspaceBytes = int64_t{64} << 20;

}  // namespace quaver
