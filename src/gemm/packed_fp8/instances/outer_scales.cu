#include "gemm/packed_fp8/instance.cuh"

namespace quaver::packed_fp8 {

template struct Instance<8, Scaling::kOuter>;
template struct Instance<16, Scaling::kOuter>;
template struct Instance<32, Scaling::kOuter>;
template struct Instance<64, Scaling::kOuter>;
template struct Instance<128, Scaling::kOuter>;
template struct Instance<192, Scaling::kOuter>;
template struct Instance<128, Scaling::kOuter, Output::kRows, 144>;
template struct Instance<128, Scaling::kOuter, Output::kRows, 176>;

}  // namespace quaver::packed_fp8
