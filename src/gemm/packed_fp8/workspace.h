// Device memory for the parts of tiles that several CTAs compute.
#pragma once

#include <cstdint>

#include "gemm/packed_fp8/layout.h"

namespace quaver::packed_fp8 {

/// CTAs that compute parts at once: the SMs of a whole GH100.
inline constexpr int kMaxRanges = 144;

/// Warpgroups of a CTA count their parts apart.
inline constexpr int64_t kArrivalBytes = int64_t{kMaxRanges} * 2 * 4;
/// FP32 sums of two parts of up to 128 x 128 a CTA.
inline constexpr int64_t kWorkspaceBytes = kArrivalBytes + int64_t{kMaxRanges} * 2 * kBlockRows * 128 * 4;

}  // namespace quaver::packed_fp8
