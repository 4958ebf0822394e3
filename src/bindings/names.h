// Words of the command line ↔ enum values, and other plain values of Python ↔ those of C++.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/check.h"
#include "model/weights.h"
#include "quaver/attention.h"
#include "quaver/kv_cache.h"
#include "quaver/token_span.h"

namespace quaver::bindings {

/// The one of `values` that `name_of` calls `name`. Throws Error(kInvalidArgument) listing all names.
template <class Values, class NameOf>
[[nodiscard]] auto by_name(std::string_view what, std::string_view name, const Values& values, NameOf name_of) {
  std::string known;
  for (const auto value : values) {
    if (name_of(value) == name) return value;
    known += concat(known.empty() ? "" : ", ", name_of(value));
  }
  fail(ErrorKind::kInvalidArgument, what, " ", name, ": expected one of ", known);
}

[[nodiscard]] inline Precision precision_by_name(std::string_view name) {
  constexpr std::array kAll{Precision::kAuto, Precision::kSingle, Precision::kSplit, Precision::kFull};
  return by_name("precision", name, kAll, precision_name);
}

[[nodiscard]] inline AttentionKernel kernel_by_name(std::string_view name) {
  constexpr std::array kAll{AttentionKernel::kCpu, AttentionKernel::kCpuEmulated, AttentionKernel::kDecodeFp8,
                            AttentionKernel::kPrefillFp8, AttentionKernel::kGeneral};
  return by_name("kernel", name, kAll, kernel_name);
}

[[nodiscard]] inline KvDtype kv_dtype_by_name(std::string_view name) {
  constexpr std::array kAll{KvDtype::kE4M3, KvDtype::kBF16};
  return by_name("kv dtype", name, kAll, kv_dtype_name);
}

[[nodiscard]] inline KvScalePolicy kv_scales_by_name(std::string_view name) {
  constexpr std::array kAll{KvScalePolicy::kAuto, KvScalePolicy::kOne};
  return by_name("kv scales", name, kAll,
                 [](KvScalePolicy policy) { return policy == KvScalePolicy::kAuto ? "auto" : "one"; });
}

/// [(first, last)] of images in a prompt.
[[nodiscard]] inline std::vector<TokenSpan> token_spans(const std::vector<std::pair<int64_t, int64_t>>& pairs) {
  std::vector<TokenSpan> spans;
  spans.reserve(pairs.size());
  for (const auto& [first, last] : pairs) spans.push_back({.first = first, .last = last});
  return spans;
}

}  // namespace quaver::bindings
