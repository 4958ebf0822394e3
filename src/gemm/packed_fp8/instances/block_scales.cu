#include "gemm/packed_fp8/instance.cuh"

namespace quaver::packed_fp8 {

template struct Instance<8, false, Scaling::kBlock>;
template struct Instance<16, false, Scaling::kBlock>;
template struct Instance<32, false, Scaling::kBlock>;
template struct Instance<64, false, Scaling::kBlock>;
template struct Instance<128, false, Scaling::kBlock>;
template struct Instance<128, true, Scaling::kBlock>;

}  // namespace quaver::packed_fp8
