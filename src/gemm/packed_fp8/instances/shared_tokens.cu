#include "gemm/packed_fp8/instance.cuh"

namespace quaver::packed_fp8 {

template struct Instance<128, true, Scaling::kOuter>;
template struct Instance<192, true, Scaling::kOuter>;

}  // namespace quaver::packed_fp8
