#include "attention/checks.h"
#include "attention/cpu/cpu_attention.h"
#include "attention/cpu/emulated.h"
#include "core/check.h"
#include "quaver/attention.h"

namespace quaver {

void run_attention(const AttentionProblem& problem, const AttentionPlan& plan, const AttentionArgs& args) {
  check_tensors(problem, args);
  switch (plan.kernel) {
    case AttentionKernel::kCpu: check_lengths(problem, args); return attention_cpu(problem, args);
    case AttentionKernel::kCpuEmulated: check_lengths(problem, args); return attention_emulated(problem, plan, args);
    default: break;
  }
  fail(ErrorKind::kUnsupported, "kernel ", kernel_name(plan.kernel),
       ": expected a CPU kernel (CUDA kernels own a stream and a workspace: src/attention/decode_fp8/launch.h)");
}

}  // namespace quaver
