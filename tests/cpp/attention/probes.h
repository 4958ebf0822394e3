// The paths that the probes of probes_*_test.cpp run through, and the values they are made of.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "attention/cpu/emulated.h"
#include "testing/cases.h"

namespace quaver::probes {

using testing::Case;
using testing::CaseSpec;
using testing::Element;

inline constexpr float kInf = std::numeric_limits<float>::infinity();

struct Result {
  std::vector<float> out;
  std::vector<float> lse;
};

enum class Path : uint8_t { kOracle, kSplit, kSingle, kSplitCut, kSingleCut };

inline std::string path_name(Path path) {
  switch (path) {
    case Path::kOracle: return "oracle";
    case Path::kSplit: return "split";
    case Path::kSingle: return "single";
    case Path::kSplitCut: return "split_in_4";
    case Path::kSingleCut: return "single_in_4";
  }
  return "unknown";
}

inline Result run(Case& c, Path path) {
  if (path == Path::kOracle) {
    const OracleOutput result = c.expected();
    return {.out = {result.out.begin(), result.out.end()}, .lse = {result.lse.begin(), result.lse.end()}};
  }
  const bool single = path == Path::kSingle || path == Path::kSingleCut;
  c.poison_outputs();
  attention_emulated(c.problem,
                     {.precision = single ? Precision::kSingle : Precision::kSplit,
                      .num_splits = path == Path::kSplitCut || path == Path::kSingleCut ? 4 : 1},
                     c.args);
  return {.out = c.out_values(), .lse = c.lse};
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

inline Element constant(float value) {
  return [value](int, int64_t, int, int) { return value; };
}

inline Element one_hot(int dim) {
  return [dim](int, int64_t token, int, int d) { return token % dim == d ? 1.0F : 0.0F; };
}

inline CaseSpec spec(int q_heads, int kv_heads, int head_dim, std::vector<int32_t> query_lens,
                     std::vector<int32_t> kv_lens) {
  return {.query_lens = std::move(query_lens),
          .kv_lens = std::move(kv_lens),
          .num_q_heads = q_heads,
          .kv = {.num_kv_heads = kv_heads, .head_dim_k = head_dim, .head_dim_v = head_dim, .page_size = 16},
          .softmax_scale = 1.0F,
          .out_dtype = DType::kF32};
}

class Probe : public ::testing::TestWithParam<Path> {
 protected:
  static Result run_case(Case& c) { return run(c, GetParam()); }
  static bool rounds_p() { return GetParam() == Path::kSingle || GetParam() == Path::kSingleCut; }
  /// Largest relative rounding of one weight: E4M3 keeps 4 significant bits, hi + lo/16 eight. Where all weights are
  /// equal they round alike, and O is off by as much, because the normaliser adds the unrounded ones.
  static float weight_error() {
    if (GetParam() == Path::kOracle) return 1e-6F;
    return rounds_p() ? 0x1p-4F : 0x1p-8F;
  }
};

inline const auto kPaths =
    ::testing::Values(Path::kOracle, Path::kSplit, Path::kSingle, Path::kSplitCut, Path::kSingleCut);

}  // namespace quaver::probes
