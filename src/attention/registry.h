// The kernels of this source tree: the one list that the policy may choose from. A kernel whose folder is not merged
// is not listed, so no plan can name it; adding one is one line here and one case in run.cpp.
#pragma once

#include <array>

#include "quaver/attention.h"

namespace quaver {

inline constexpr std::array kBuiltKernels{
    AttentionKernel::kCpu,        AttentionKernel::kCpuEmulated, AttentionKernel::kDecodeFp8,
    AttentionKernel::kPrefillFp8, AttentionKernel::kGeneral,
};

}  // namespace quaver
