#include "quaver/attention.h"

namespace quaver {

std::string_view kernel_name(AttentionKernel kernel) noexcept {
  switch (kernel) {
    case AttentionKernel::kCpu: return "cpu";
    case AttentionKernel::kCpuEmulated: return "cpu_emulated";
    case AttentionKernel::kDecodeFp8: return "decode_fp8";
    case AttentionKernel::kPrefillFp8: return "prefill_fp8";
    case AttentionKernel::kGeneral: return "general";
  }
  return "unknown";
}

std::string_view precision_name(Precision precision) noexcept {
  switch (precision) {
    case Precision::kAuto: return "auto";
    case Precision::kSingle: return "single";
    case Precision::kSplit: return "split";
    case Precision::kFull: return "full";
  }
  return "unknown";
}

}  // namespace quaver
