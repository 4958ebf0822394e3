// A warp finds the ends for 32 tokens: it looks at as many at a time until the last of its own spans has ended.
#pragma once

#include "attention/kernel_parts.cuh"
#include "attention/schedule/span_ends.h"
#include "attention/tiles.h"
#include "ptx/launch.cuh"

namespace quaver::schedule {

inline constexpr int kSpanEndsThreads = 128;

/// Is row `token` + 1 of q in the span of row `token`? Rows of two sequences never are.
[[nodiscard]] inline __device__ bool span_goes_on(const SpanEnds& p, int token) {
  if (token + 1 >= p.num_tokens || !tiles::span_goes_on(p.span_ids[token], p.span_ids[token + 1])) return false;
  const int sequence = find_sequence(p.lengths.query_start, p.lengths.num_sequences, token);
  return sequence >= 0 && token + 1 < p.lengths.query_start[sequence + 1];
}

__global__ void __launch_bounds__(kSpanEndsThreads) quaver_span_ends(const __grid_constant__ SpanEnds p) {
  ptx::launch_dependents();
  ptx::grid_dependency_wait();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int token = static_cast<int>(blockIdx.x) * kSpanEndsThreads + static_cast<int>(threadIdx.x);
  const int begin = token - lane;
  int end = 0;  // one past the last token of the span, as a row of q
  for (int first = begin; __any_sync(kAllLanes, end == 0); first += 32) {
    uint32_t ends = __ballot_sync(kAllLanes, !span_goes_on(p, first + lane));
    if (first == begin) ends &= kAllLanes << lane;
    if (end == 0 && ends != 0) end = first + __ffs(static_cast<int>(ends));
  }
  const int sequence = find_sequence(p.lengths.query_start, p.lengths.num_sequences, token);
  if (token < p.num_tokens && sequence >= 0) p.ends[token] = end - p.lengths.query_start[sequence];
}

}  // namespace quaver::schedule
