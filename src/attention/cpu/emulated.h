// The arithmetic of the FP8 attention kernels on the CPU, step by step, on the same pages (docs/numerics.md).
//
// Q      BF16 -> one power-of-two scale a row, E4M3 (`single`) or hi + lo/16, both E4M3 (`split`).
// S      K = 32 instructions over the head dim, hi and lo in separate accumulators, S = hi + lo/16 in FP32.
// P      2^8 * 2^(s - m), s in log2 units, m the running maximum rounded up to an integer; E4M3 or hi + lo/16.
// l      FP32 sum of the unrounded P: four sums a row (keys 8j + 2t, 8j + 2t + 1 go to sum t), as the lanes hold them.
// O      T = P*V of one tile in a fresh accumulator, then O = O * 2^(m_old - m_new) + T in FP32.
// Splits leave FP32 (O, m, l); they are added in order. Sinks, LSE and BF16 rounding come last.
// Because every rescale is an exact power of two, P and l of a row do not depend on tiles, splits or batch-mates.
#pragma once

#include "core/accumulator.h"
#include "quaver/attention.h"

namespace quaver {

struct EmulationOptions {
  Precision precision = Precision::kSplit;  ///< kSingle or kSplit
  Accumulator accumulator = Accumulator::kHardware13;
  int kv_tile = 64;         ///< tokens of a KV tile, a multiple of 32; tiles start at absolute multiples of it
  bool promote_qk = false;  ///< add the QK accumulators to FP32 every K = 128
  bool fresh_accumulator =
      true;              ///< false: P*V accumulates in the tensor core over all tiles (to show what that costs)
  int split_tokens = 0;  ///< > 0: splits end at absolute multiples of this, a multiple of kv_tile
  int num_splits = 1;    ///< without split_tokens: even cut of the tiles; may exceed their number
};

/// Runs on E4M3 pages in host memory; `args` fit `problem` (run_attention() checks them). out is BF16 or, to see the
/// error before output rounding, F32. Throws Error(kInvalidArgument) for options or a cache dtype it does not know.
void attention_emulated(const AttentionProblem& problem, const EmulationOptions& options, const AttentionArgs& args);

/// The same with what a kernel under `plan` does: its tile, precision, promotion and fixed splits.
void attention_emulated(const AttentionProblem& problem, const AttentionPlan& plan, const AttentionArgs& args);

}  // namespace quaver
