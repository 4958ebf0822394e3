// Kernel instances that the emulation does not compile: they cost a minute of compiler and show nothing new. Launching
// one is an error.
#include "attention/decode_fp8/instance.h"
#include "attention/prefill_fp8/instance.h"
#include "gemm/packed_fp8/instance.h"

namespace quaver {
namespace {

[[noreturn]] void absent(const char* what, int value) {
  fail(ErrorKind::kUnsupported, what, " ", value, ": expected one that tests/emulation compiles");
}

}  // namespace

namespace decode_fp8 {
template <int kHeadDim, int kRows>
int Instance<kHeadDim, kRows>::prepare() {
  return 1;
}
template <int kHeadDim, int kRows>
void Instance<kHeadDim, kRows>::launch(const Parameters& /*parameters*/, int /*grid*/, cudaStream_t /*stream*/) {
  absent("head dim of decode", kHeadDim);
}
template struct Instance<96, 4>;
template struct Instance<96, 8>;
template struct Instance<96, 32>;
template struct Instance<128, 4>;
template struct Instance<128, 8>;
template struct Instance<128, 32>;
template struct Instance<192, 4>;
template struct Instance<192, 8>;
template struct Instance<192, 32>;
template struct Instance<512, 4>;
template struct Instance<512, 8>;
template struct Instance<512, 32>;
}  // namespace decode_fp8

namespace prefill_fp8 {
template <int kHeadDim, bool kSplit>
int Instance<kHeadDim, kSplit>::prepare() {
  return 1;
}
template <int kHeadDim, bool kSplit>
void Instance<kHeadDim, kSplit>::launch(const Parameters& /*parameters*/, int /*grid*/, cudaStream_t /*stream*/) {
  absent("head dim of prefill", kHeadDim);
}
template struct Instance<96, false>;
template struct Instance<96, true>;
template struct Instance<128, false>;
template struct Instance<128, true>;
template struct Instance<192, false>;
template struct Instance<192, true>;
}  // namespace prefill_fp8

namespace packed_fp8 {
template <int kTokens, Scaling kScaling, Output kOutput, int kRows>
void Instance<kTokens, kScaling, kOutput, kRows>::prepare() {}
template <int kTokens, Scaling kScaling, Output kOutput, int kRows>
int Instance<kTokens, kScaling, kOutput, kRows>::max_clusters(int /*cluster*/) {
  absent("token tile", kTokens);
}
template <int kTokens, Scaling kScaling, Output kOutput, int kRows>
void Instance<kTokens, kScaling, kOutput, kRows>::launch(Parameters /*parameters*/, cudaStream_t /*stream*/) {
  absent("token tile", kTokens);
}
template struct Instance<8, Scaling::kBlock>;
template struct Instance<32, Scaling::kBlock>;
template struct Instance<64, Scaling::kBlock>;
template struct Instance<128, Scaling::kBlock>;
}  // namespace packed_fp8

}  // namespace quaver
