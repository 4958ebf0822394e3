// Host side of the prefill kernel: the work list of one cache group on one stream, and the launches.
#pragma once

#include <memory>

#include "attention/schedule/block_list.h"
#include "core/cuda.h"
#include "core/device_info.h"
#include "quaver/attention.h"

namespace quaver::prefill_fp8 {

/// Attention of the layers of one cache group on one stream of the current device. Allocates in the constructor only.
class PrefillFp8 {
 public:
  /// `max_tokens`: most query tokens of a step with spans. Throws Error(kUnsupported) for a device that the kernel does
  /// not run on, Error(kOutOfMemory).
  PrefillFp8(const AttentionProblem& problem, const AttentionPlan& plan, const DeviceInfo& device,
             int64_t max_sequences, int64_t max_tokens);

  /// Makes the work list from lengths and, if given, span ids in device memory: once a step. No synchronisation;
  /// graph-safe. `min_rows`: sequences with fewer query rows a kv head are left to another kernel.
  /// Throws Error(kInvalidArgument) for more span ids than it was made for.
  void schedule(const AttentionArgs& args, int min_rows, cudaStream_t stream);

  /// One layer, with the lengths and spans of the last schedule(). The caller has checked `args` against the problem;
  /// what only the device can see is trusted: lengths that fit the block table, page ids inside the pool.
  void run(const AttentionArgs& args, cudaStream_t stream);

 private:
  AttentionProblem problem_;
  AttentionPlan plan_;
  int grid_ = 0;
  int block_rows_ = 0;
  std::unique_ptr<schedule::BlockList> work_;
  DeviceBuffer<int32_t> span_ends_;  // [max_tokens]; none for problems without spans
  DeviceBuffer<float> partial_out_;  // of parts; none where nothing is cut
  DeviceBuffer<float2> partial_max_sum_;
};

}  // namespace quaver::prefill_fp8
