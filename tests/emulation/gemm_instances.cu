// The one GEMM instance with block scales that the emulation compiles; the others are the library's.
#include "gemm/packed_fp8/instance.cuh"

namespace quaver::packed_fp8 {

template struct Instance<16, Scaling::kBlock>;

}  // namespace quaver::packed_fp8
