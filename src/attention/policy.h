// The policy with the list of kernels as an argument, so that tests can decide for kernels that are not built yet.
#pragma once

#include <span>
#include <variant>

#include "quaver/attention.h"

namespace quaver {

/// plan_attention() with an explicit list of kernels; docs/dispatch.md names the rules.
[[nodiscard]] std::variant<AttentionPlan, Unsupported> plan_attention(const AttentionProblem& problem,
                                                                      std::span<const AttentionKernel> built);

/// plan_attention() for who cannot go on without a plan. Throws Error(kUnsupported) with the policy's sentence.
[[nodiscard]] AttentionPlan plan_or_throw(const AttentionProblem& problem);

/// Query rows a kv head of the longest sequence in a call: group * max_query_len.
[[nodiscard]] int64_t rows_per_kv_head(const AttentionProblem& problem);

}  // namespace quaver
