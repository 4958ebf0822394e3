// Problem → Plan | reason. Every kernel has one function that says why it cannot take a problem; the first kernel of
// the architecture that has no objection is chosen, and the objections of those before it are the reason.
#include "attention/policy.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>

#include "attention/cpu/cpu_attention.h"
#include "attention/registry.h"
#include "attention/tiles.h"
#include "core/check.h"
#include "kv_cache/page_format.h"

namespace quaver {
namespace {

using Objection = std::optional<std::string>;  // why not; nullopt: fine

// Numbers that no attention can have, whatever the kernel.
Objection malformed(const AttentionProblem& problem) {
  const KvLayout& kv = problem.kv;
  if (problem.num_q_heads < 1) return concat("num_q_heads ", problem.num_q_heads, ": expected at least 1");
  if (kv.num_kv_heads < 1) return concat("num_kv_heads ", kv.num_kv_heads, ": expected at least 1");
  if (problem.num_q_heads % kv.num_kv_heads != 0) {
    return concat("num_q_heads ", problem.num_q_heads, ": expected a multiple of num_kv_heads ", kv.num_kv_heads);
  }
  if (kv.head_dim_k < 1 || kv.head_dim_v < 1) {
    return concat("head dims ", kv.head_dim_k, " and ", kv.head_dim_v, ": expected at least 1");
  }
  if (kv.dtype == KvDtype::kE4M3 && (kv.head_dim_k % 16 != 0 || kv.head_dim_v % 16 != 0)) {
    return concat("head dims ", kv.head_dim_k, " and ", kv.head_dim_v,
                  ": expected multiples of 16 in an FP8 page (a BF16 cache takes any)");
  }
  if (!page_format::page_size_supported(kv.page_size)) {
    return concat("page size ", kv.page_size, ": expected 16, 32, 64 or 128");
  }
  if (problem.max_query_len < 1) return concat("max_query_len ", problem.max_query_len, ": expected at least 1");
  if (problem.window < 0) return concat("window ", problem.window, ": expected 0 (none) or more");
  if (!std::isfinite(problem.softcap) || problem.softcap < 0) {
    return concat("softcap ", problem.softcap, ": expected 0 (none) or a positive finite number");
  }
  if (problem.bidirectional_spans && !problem.causal) {
    return "bidirectional_spans without causal: expected a causal mask for the spans to widen";
  }
  return std::nullopt;
}

bool is_cpu_kernel(AttentionKernel kernel) {
  return kernel == AttentionKernel::kCpu || kernel == AttentionKernel::kCpuEmulated;
}

/// Spans of several tokens: the decode kernel masks by position alone.
bool has_spans(const AttentionProblem& problem) {
  return problem.bidirectional_spans && problem.max_query_len > 1;
}

// Batch-invariant mode has one arithmetic for all rows: max_query_len would be that of the longest batch-mate.
tiles::KernelFamily emulated_family(const AttentionProblem& problem) {
  const bool few = rows_per_kv_head(problem) <= tiles::kMaxDecodeRows && !has_spans(problem);
  const bool decode = problem.batch_invariant || few;
  return decode ? tiles::KernelFamily::kDecode : tiles::KernelFamily::kPrefill;
}

// What all FP8 tensor-core kernels, and their emulation, need of the cache.
Objection fp8_objection(const AttentionProblem& problem) {
  const KvLayout& kv = problem.kv;
  if (kv.dtype != KvDtype::kE4M3) return concat("kv dtype ", kv_dtype_name(kv.dtype), ": expected fp8");
  if (kv.head_dim_k != kv.head_dim_v) {
    return concat("head dims ", kv.head_dim_k, " (K) and ", kv.head_dim_v, " (V): expected equal");
  }
  if (std::ranges::find(tiles::kKernelHeadDims, kv.head_dim_k) == tiles::kKernelHeadDims.end()) {
    return concat("head dim ", kv.head_dim_k, ": expected 64, 96, 128, 192, 256 or 512");
  }
  if (problem.precision == Precision::kFull) return "precision full: expected single, split or auto";
  return std::nullopt;
}

// Kernels that compute in FP32 have no other precision to offer.
Objection fp32_objection(const AttentionProblem& problem) {
  if (problem.precision == Precision::kAuto || problem.precision == Precision::kFull) return std::nullopt;
  return concat("precision ", precision_name(problem.precision), ": expected full or auto");
}

Objection decode_objection(const AttentionProblem& problem) {
  if (auto objection = fp8_objection(problem)) return objection;
  if (const int64_t rows = rows_per_kv_head(problem); rows > tiles::kMaxDecodeRows) {
    return concat("query rows a kv head (group * max_query_len) ", rows, ": expected at most ", tiles::kMaxDecodeRows);
  }
  if (has_spans(problem)) return "bidirectional spans: expected none";
  return std::nullopt;
}

Objection prefill_objection(const AttentionProblem& problem) {
  if (auto objection = fp8_objection(problem)) return objection;
  return std::nullopt;
}

Objection kernel_objection(AttentionKernel kernel, const AttentionProblem& problem,
                           std::span<const AttentionKernel> built) {
  if (is_cpu_kernel(kernel) != (problem.arch == 0)) {
    return is_cpu_kernel(kernel) ? "architecture: expected the CPU (arch 0)" : "architecture: expected arch 90";
  }
  if (std::ranges::find(built, kernel) == built.end()) return "not part of this version";
  switch (kernel) {
    case AttentionKernel::kCpu:
    case AttentionKernel::kGeneral: return fp32_objection(problem);
    case AttentionKernel::kDecodeFp8: return decode_objection(problem);
    case AttentionKernel::kPrefillFp8: return prefill_objection(problem);
    case AttentionKernel::kCpuEmulated: return fp8_objection(problem);
  }
  return "unknown kernel";
}

AttentionPlan fp8_plan(AttentionKernel kernel, tiles::KernelFamily family, const AttentionProblem& problem) {
  const int head_dim = problem.kv.head_dim_k;
  AttentionPlan plan{.kernel = kernel, .precision = problem.precision};
  if (plan.precision == Precision::kAuto) {
    const bool single = family == tiles::KernelFamily::kPrefill && head_dim <= 256;
    plan.precision = single ? Precision::kSingle : Precision::kSplit;
  }
  plan.kv_tile = tiles::kv_tile(family, head_dim);
  plan.max_rows = kernel == AttentionKernel::kDecodeFp8 ? tiles::kMaxDecodeRows : 0;
  const bool cut = family == tiles::KernelFamily::kDecode;  // prefill works on all keys of a row in one go
  plan.split_tokens = cut && problem.batch_invariant ? tiles::kFixedSplitTokens : 0;
  // The decode kernel promotes in `single` too: measured free, and one instance serves both. Prefill does where it has
  // registers for a second S, which `single` at 256 has not.
  const bool no_registers =
      plan.precision == Precision::kSingle && family == tiles::KernelFamily::kPrefill && head_dim == 256;
  plan.promote_qk = head_dim >= 256 && !no_registers;
  return plan;
}

AttentionPlan make_plan(AttentionKernel kernel, const AttentionProblem& problem) {
  switch (kernel) {
    case AttentionKernel::kCpuEmulated: return fp8_plan(kernel, emulated_family(problem), problem);
    case AttentionKernel::kDecodeFp8: return fp8_plan(kernel, tiles::KernelFamily::kDecode, problem);
    case AttentionKernel::kPrefillFp8: return fp8_plan(kernel, tiles::KernelFamily::kPrefill, problem);
    case AttentionKernel::kCpu:
      return {.kernel = kernel, .precision = Precision::kFull, .kv_tile = kCpuTile, .split_tokens = kCpuSplitTokens};
    case AttentionKernel::kGeneral: break;
  }
  return {.kernel = kernel, .precision = Precision::kFull};
}

std::string chosen_because(AttentionKernel kernel, const AttentionPlan& plan) {
  switch (kernel) {
    case AttentionKernel::kCpu: return "the CPU path computes in FP32 on the stored K and V";
    case AttentionKernel::kCpuEmulated: return "the emulation computes what the FP8 kernels compute";
    case AttentionKernel::kDecodeFp8: return "few query rows over an FP8 cache: the rows that split needs are padding";
    case AttentionKernel::kPrefillFp8:
      return plan.precision == Precision::kSingle
                 ? "native FP8 forward: E4M3 Q, K, V and P"
                 : "FP8 tensor cores with Q and P as hi + lo: BF16 accuracy at twice the products";
    case AttentionKernel::kGeneral: return "the general kernel takes every shape";
  }
  return "unknown kernel";
}

}  // namespace

int64_t rows_per_kv_head(const AttentionProblem& problem) {
  return int64_t{problem.num_q_heads / problem.kv.num_kv_heads} * problem.max_query_len;
}

std::variant<AttentionPlan, Unsupported> plan_attention(const AttentionProblem& problem,
                                                        std::span<const AttentionKernel> built) {
  if (auto objection = malformed(problem)) return Unsupported{*objection};
  if (problem.arch != 0 && problem.arch != 90) {
    return Unsupported{concat("architecture sm_", problem.arch, ": expected sm_90 (H100, H200) or the CPU (arch 0)")};
  }
  if (problem.kernel) {  // the user's choice is kept or refused, never replaced
    if (auto objection = kernel_objection(*problem.kernel, problem, built)) {
      return Unsupported{concat("kernel ", kernel_name(*problem.kernel), " was asked for; ", *objection)};
    }
    AttentionPlan plan = make_plan(*problem.kernel, problem);
    plan.reason = concat("asked for; ", chosen_because(*problem.kernel, plan));
    return plan;
  }
  constexpr std::array kCpuOrder{AttentionKernel::kCpu, AttentionKernel::kCpuEmulated};
  constexpr std::array kCudaOrder{AttentionKernel::kDecodeFp8, AttentionKernel::kPrefillFp8, AttentionKernel::kGeneral};
  const auto order = problem.arch == 0 ? std::span<const AttentionKernel>(kCpuOrder) : kCudaOrder;
  std::string objections;
  for (const AttentionKernel kernel : order) {
    const auto objection = kernel_objection(kernel, problem, built);
    if (!objection) {
      AttentionPlan plan = make_plan(kernel, problem);
      plan.reason = chosen_because(kernel, plan) + objections;
      return plan;
    }
    objections += concat("; not ", kernel_name(kernel), ": ", *objection);
  }
  return Unsupported{concat("no kernel takes this problem", objections)};
}

std::variant<AttentionPlan, Unsupported> plan_attention(const AttentionProblem& problem) {
  return plan_attention(problem, kBuiltKernels);
}

AttentionPlan plan_or_throw(const AttentionProblem& problem) {
  const auto decision = plan_attention(problem);
  if (const auto* const refusal = std::get_if<Unsupported>(&decision)) fail(ErrorKind::kUnsupported, refusal->reason);
  return std::get<AttentionPlan>(decision);
}

}  // namespace quaver
