#include "gemm/packed_fp8/instance.cuh"

namespace quaver::packed_fp8 {

template struct Instance<8, Scaling::kBlock>;
template struct Instance<16, Scaling::kBlock>;
template struct Instance<32, Scaling::kBlock>;
template struct Instance<64, Scaling::kBlock>;
template struct Instance<128, Scaling::kBlock>;

}  // namespace quaver::packed_fp8
