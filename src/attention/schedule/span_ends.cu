#include "attention/schedule/span_ends.h"

#include "attention/schedule/span_ends.cuh"

namespace quaver::schedule {

void find_span_ends(const SpanEnds& spans, cudaStream_t stream) {
  if (spans.num_tokens == 0) return;
  const auto ctas = static_cast<unsigned>((spans.num_tokens + kSpanEndsThreads - 1) / kSpanEndsThreads);
  launch_programmatic(quaver_span_ends, dim3(ctas), kSpanEndsThreads, 0, stream, spans);
}

}  // namespace quaver::schedule
