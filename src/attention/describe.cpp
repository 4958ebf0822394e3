// Problems and plans as text.
#include <string>
#include <string_view>

#include "attention/vllm_version.h"
#include "core/check.h"
#include "quaver/attention.h"

namespace quaver {
namespace {

// Relative L2 error against float64 on the same cache, N(0, 1) data, BF16 output (docs/numerics.md).
std::string_view numerics(const AttentionPlan& plan) {
  switch (plan.precision) {
    case Precision::kSingle:
      return "single: Q and P in E4M3 (one power-of-two scale a row, P at 2^8); error 3.6e-2, of it 2.4e-2 from P";
    case Precision::kSplit:
      return "split: Q and P as hi + lo/16 in E4M3; error 1.8e-3 to 2.0e-3 (rounding to BF16 alone is 1.7e-3)";
    default: return "full: FP32 arithmetic on the stored K and V; error 1.7e-3, which is the rounding to BF16";
  }
}

std::string arch_name(int arch) {
  return arch == 0 ? "cpu" : concat("sm_", arch);
}

// The same problem with one thing changed, and what that would do.
std::string alternative(const AttentionProblem& problem, const AttentionPlan& now, std::string_view change) {
  const auto decision = plan_attention(problem);
  if (const auto* refused = std::get_if<Unsupported>(&decision)) return concat("  ", change, ": no, ", refused->reason);
  const auto& plan = std::get<AttentionPlan>(decision);
  if (plan.kernel == now.kernel && plan.precision == now.precision) return {};
  return concat("  ", change, ": ", kernel_name(plan.kernel), ", ", precision_name(plan.precision));
}

std::string alternatives(const AttentionProblem& problem, const AttentionPlan& plan) {
  std::string text;
  const auto add = [&](const std::string& line) {
    if (!line.empty()) text += line + "\n";
  };
  for (const Precision precision : {Precision::kSingle, Precision::kSplit, Precision::kFull}) {
    AttentionProblem other = problem;
    other.precision = precision;
    add(alternative(other, plan, concat("precision ", precision_name(precision))));
  }
  AttentionProblem other = problem;
  other.kv.dtype = problem.kv.dtype == KvDtype::kE4M3 ? KvDtype::kBF16 : KvDtype::kE4M3;
  add(alternative(other, plan, concat("a ", kv_dtype_name(other.kv.dtype), " cache")));
  other = problem;
  other.max_query_len = problem.max_query_len == 1 ? 512 : 1;
  add(alternative(other, plan, concat(other.max_query_len, " query tokens a sequence")));
  return text;
}

std::string vllm_line(const AttentionProblem& problem) {
  const VllmVersion version = vllm_flash_attention_version({.capability_major = problem.arch / 10,
                                                            .explicit_version = {},
                                                            .head_size = problem.kv.head_dim_k,
                                                            .head_size_v = problem.kv.head_dim_v,
                                                            .has_sinks = problem.sinks,
                                                            .batch_invariant = problem.batch_invariant,
                                                            .kv_cache_e4m3 = problem.kv.dtype == KvDtype::kE4M3,
                                                            .softcap = problem.softcap > 0});
  return concat("in vLLM:   ", version.version ? concat("FA", *version.version) : "no FlashAttention", " (",
                version.reason, ")\n");
}

}  // namespace

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

std::string to_string(const AttentionProblem& problem) {
  const KvLayout& kv = problem.kv;
  std::string dims = std::to_string(kv.head_dim_k);
  if (kv.head_dim_v != kv.head_dim_k) dims += concat("/", kv.head_dim_v);
  std::string text =
      concat(arch_name(problem.arch), ", ", problem.num_q_heads, " q heads, ", kv.num_kv_heads, " kv heads, head dim ",
             dims, ", ", kv_dtype_name(kv.dtype), " cache, pages of ", kv.page_size, ", up to ", problem.max_query_len,
             " query tokens, ", problem.causal ? "causal" : "not causal");
  if (problem.window > 0) text += concat(", window ", problem.window);
  if (problem.softcap > 0) text += concat(", softcap ", problem.softcap);
  if (problem.sinks) text += ", sinks";
  if (problem.bidirectional_spans) text += ", bidirectional spans";
  if (problem.batch_invariant) text += ", batch invariant";
  if (problem.precision != Precision::kAuto) text += concat(", precision ", precision_name(problem.precision));
  if (problem.kernel) text += concat(", kernel ", kernel_name(*problem.kernel));
  return text;
}

std::string to_string(const AttentionPlan& plan) {
  std::string text = concat(kernel_name(plan.kernel), ", ", precision_name(plan.precision));
  if (plan.kv_tile > 0) text += concat(", tiles of ", plan.kv_tile, " keys");
  if (plan.max_rows > 0) text += concat(", up to ", plan.max_rows, " rows a kv head");
  if (plan.split_tokens > 0) text += concat(", split every ", plan.split_tokens, " keys");
  if (plan.promote_qk) text += ", QK promoted every K = 128";
  return text;
}

std::string explain(const AttentionProblem& problem) {
  std::string text = concat("problem:   ", to_string(problem), "\n");
  const auto decision = plan_attention(problem);
  if (const auto* refused = std::get_if<Unsupported>(&decision)) {
    return text + concat("decision:  not supported\nwhy:       ", refused->reason, "\n");
  }
  const auto& plan = std::get<AttentionPlan>(decision);
  text += concat("decision:  ", to_string(plan), "\n");
  text += concat("numerics:  ", numerics(plan), "\n");
  text += concat("why:       ", plan.reason, "\n");
  if (problem.arch != 0) text += vllm_line(problem);
  if (const std::string changes = alternatives(problem, plan); !changes.empty()) {
    text += "it would change with\n" + changes;
  }
  return text;
}

}  // namespace quaver
