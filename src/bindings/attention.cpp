// The attention policy: Problem → Plan, or why not.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include "attention/policy.h"
#include "bindings/bindings.h"
#include "bindings/names.h"
#include "quaver/attention.h"

namespace nb = nanobind;

namespace quaver::bindings {
namespace {

AttentionProblem make_problem(int arch, int num_q_heads, const KvLayout& kv, int max_query_len, int window, bool causal,
                              float softcap, bool sinks, bool bidirectional_spans, bool batch_invariant,
                              std::string_view precision, const std::optional<std::string>& kernel) {
  AttentionProblem problem{.arch = arch,
                           .num_q_heads = num_q_heads,
                           .kv = kv,
                           .max_query_len = max_query_len,
                           .window = window,
                           .causal = causal,
                           .softcap = softcap,
                           .sinks = sinks,
                           .bidirectional_spans = bidirectional_spans,
                           .batch_invariant = batch_invariant,
                           .precision = precision_by_name(precision),
                           .kernel = std::nullopt};
  if (kernel) problem.kernel = kernel_by_name(*kernel);
  return problem;
}

}  // namespace

void bind_attention(nb::module_& module) {
  nb::class_<AttentionProblem>(module, "AttentionProblem", "What a caller asks of attention")
      .def("__str__", [](const AttentionProblem& problem) { return to_string(problem); });
  nb::class_<AttentionPlan>(module, "AttentionPlan", "What will run, and why")
      .def_prop_ro("kernel", [](const AttentionPlan& plan) { return kernel_name(plan.kernel); })
      .def_prop_ro("precision", [](const AttentionPlan& plan) { return precision_name(plan.precision); })
      .def_ro("kv_tile", &AttentionPlan::kv_tile)
      .def_ro("max_rows", &AttentionPlan::max_rows)
      .def_ro("split_tokens", &AttentionPlan::split_tokens)
      .def_ro("promote_qk", &AttentionPlan::promote_qk)
      .def_ro("reason", &AttentionPlan::reason)
      .def("__str__", [](const AttentionPlan& plan) { return to_string(plan); });
  module.def("attention_problem", &make_problem, nb::kw_only(), nb::arg("arch"), nb::arg("num_q_heads"), nb::arg("kv"),
             nb::arg("max_query_len") = 1, nb::arg("window") = 0, nb::arg("causal") = true, nb::arg("softcap") = 0.0F,
             nb::arg("sinks") = false, nb::arg("bidirectional_spans") = false, nb::arg("batch_invariant") = false,
             nb::arg("precision") = "auto", nb::arg("kernel") = nb::none(),
             "A problem from plain values; raises ValueError for a precision or kernel that does not exist");
  module.def("plan_attention", &plan_or_throw, nb::arg("problem"),
             "The plan for a problem; raises ValueError with the reason where there is none");
  module.def("explain", &explain, nb::arg("problem"),
             "The decision for people: what runs, why, and what would change it");
}

}  // namespace quaver::bindings
