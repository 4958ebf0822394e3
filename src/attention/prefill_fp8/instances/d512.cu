#include "attention/prefill_fp8/instance.cuh"

template struct quaver::prefill_fp8::Instance<512, false>;
template struct quaver::prefill_fp8::Instance<512, true>;
