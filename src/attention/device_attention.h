// The GPU entry: attention of the layers of one cache group on one stream. Call schedule() once a step and run() once a
// layer: neither allocates, synchronises nor decides anything, so a step can be a CUDA graph. CUDA builds only.
#pragma once

#include <optional>

#include "attention/decode_fp8/launch.h"
#include "attention/prefill_fp8/launch.h"
#include "core/cuda.h"
#include "core/device_info.h"
#include "quaver/attention.h"

namespace quaver {

/// What the workspace is sized for, and who gets which kernel.
struct DeviceAttentionLimits {
  int64_t max_sequences = 0;
  int64_t max_kv_tokens = 0;  ///< as decode_fp8::Limits has it
  /// Beside a prefill kernel: most query tokens of a sequence that is the decode kernel's; 0: as many as fit.
  int max_decode_query_len = 0;
  int64_t max_tokens = 0;  ///< problems with spans: most query tokens of a call
  friend bool operator==(const DeviceAttentionLimits&, const DeviceAttentionLimits&) = default;
};

/// What may still be written when attention begins.
using decode_fp8::InFront;

class DeviceAttention {
 public:
  /// Allocates the work list and the workspace on the current device. Throws Error(kUnsupported) for a plan whose
  /// kernel does not run on `device`, Error(kInvalidArgument) for a plan that does not fit the problem,
  /// Error(kOutOfMemory).
  /// With a plan for the prefill kernel, sequences of few query tokens in a call (the decode rows of a mixed step) go
  /// to the decode kernel under its own plan, unless the problem names the kernel.
  DeviceAttention(const AttentionProblem& problem, const AttentionPlan& plan, const DeviceInfo& device,
                  const DeviceAttentionLimits& limits);

  /// Makes the work list from `args.seq_lens`, `args.query_start`, `args.block_table` and `args.span_ids` (not given:
  /// no spans) in device memory. (The general kernel has none.)
  void schedule(const AttentionArgs& args, cudaStream_t stream);

  /// One layer, with the lengths, block table and spans of the last schedule(). Checks what the host can see (shapes,
  /// dtypes, strides, alignment) and throws Error(kInvalidArgument) before anything is launched. What only the device
  /// can see is trusted: lengths that fit the block table, page ids inside the pool, at most plan.max_rows query rows,
  /// and `in_front`. After append_kv() of the same tokens InFront::kNewKeys is right: it begins when all else is there.
  void run(const AttentionArgs& args, cudaStream_t stream, InFront in_front = InFront::kAnything);

 private:
  AttentionProblem problem_;
  std::optional<decode_fp8::DecodeFp8> decode_;  // neither: the general kernel, which keeps nothing between calls
  std::optional<prefill_fp8::PrefillFp8> prefill_;
};

}  // namespace quaver
