#include "gemm/packed_fp8/instance.cuh"

namespace quaver::packed_fp8 {

template struct Instance<8, false, Scaling::kOuter>;
template struct Instance<16, false, Scaling::kOuter>;
template struct Instance<32, false, Scaling::kOuter>;
template struct Instance<64, false, Scaling::kOuter>;
template struct Instance<128, false, Scaling::kOuter>;

}  // namespace quaver::packed_fp8
