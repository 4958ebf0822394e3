// The CPU path that generation uses: FP32 arithmetic on the stored K and V.
//
// A unit of work is a block of query rows of one (sequence, kv head). It walks KV tiles of kCpuTile keys at absolute
// multiples, flash-attention style (arXiv:2205.14135): dequantise the tile once for all rows, S = Q K^T, P = 2^(S - m)
// with the running maximum m rounded up to an integer (so rescaling is exact), O = O * 2^(m_old - m) + P V.
// Partial results of fixed splits of kCpuSplitTokens keys are folded in ascending order. A row's arithmetic therefore
// depends on its own keys only: results are bitwise equal whatever the batch, the chunking of the prompt, the number of
// rows in a call, the page size and the number of threads.
#pragma once

#include "quaver/attention.h"

namespace quaver {

inline constexpr int kCpuTile = 64;
inline constexpr int kCpuSplitTokens = 512;

/// Runs `args`, which run_attention() has checked. Query rows that belong to no sequence are left alone.
void attention_cpu(const AttentionProblem& problem, const AttentionArgs& args);

}  // namespace quaver
