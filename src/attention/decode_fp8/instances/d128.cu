#include "attention/decode_fp8/instance.cuh"

template struct quaver::decode_fp8::Instance<128, 4>;
template struct quaver::decode_fp8::Instance<128, 8>;
template struct quaver::decode_fp8::Instance<128, 32>;
