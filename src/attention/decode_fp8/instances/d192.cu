#include "attention/decode_fp8/instance.cuh"

template struct quaver::decode_fp8::Instance<192, 4>;
template struct quaver::decode_fp8::Instance<192, 8>;
template struct quaver::decode_fp8::Instance<192, 32>;
