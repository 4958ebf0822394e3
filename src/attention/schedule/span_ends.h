// Where the image span of every query token ends: what schedule() and the prefill kernel need of
// AttentionArgs::span_ids.
#pragma once

#include <cstdint>

#include "attention/schedule/walker.h"
#include "core/cuda.h"

namespace quaver::schedule {

/// ends[t] = tiles::visible_keys_in_span()'s span_end of row t of q, as a token of its sequence. Device memory.
struct SpanEnds {
  const int32_t* span_ids = nullptr;  ///< [num_tokens], -1: text
  int num_tokens = 0;                 ///< T; rows of no sequence get nothing
  SequenceLengths lengths{};          ///< without seq_lens
  int32_t* ends = nullptr;            ///< [num_tokens]
};

/// Launches the kernel. No synchronisation; graph-safe.
void find_span_ends(const SpanEnds& spans, cudaStream_t stream);

}  // namespace quaver::schedule
