#include "attention/decode_fp8/instance.cuh"

template struct quaver::decode_fp8::Instance<256, 4>;
template struct quaver::decode_fp8::Instance<256, 8>;
template struct quaver::decode_fp8::Instance<256, 32>;
