#include "attention/decode_fp8/instance.cuh"

template struct quaver::decode_fp8::Instance<192>;
