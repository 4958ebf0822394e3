// Host side of the decode kernel: the work list and workspace of one cache group on one stream, and the launches.
#pragma once

#include <memory>

#include "attention/combine/partials.h"
#include "attention/schedule/work_list.h"
#include "core/cuda.h"
#include "core/device_info.h"
#include "quaver/attention.h"

namespace quaver::decode_fp8 {

/// What memory is sized for.
struct Limits {
  int64_t max_sequences = 0;
  /// Batch-invariant mode only: most keys of all sequences of a step together (prefixes that sequences share count for
  /// each of them). Every 4,096 of them may need a slot for a partial result.
  int64_t max_kv_tokens = 0;
};

/// What the kernels in front of run() in its stream may still be writing when the one directly in front begins.
enum class InFront : uint8_t {
  kAnything,  ///< nothing is read before they have ended
  /// Of what run() reads only q and, in the cache, the keys of each sequence's last query_len tokens. Lengths, block
  /// table, scales, older keys and what schedule() makes are complete: older keys come while those kernels end.
  kNewKeys,
};

/// Attention of the layers of one cache group on one stream of the current device. Allocates in the constructor only.
class DecodeFp8 {
 public:
  /// Throws Error(kUnsupported) for a device that the kernel does not run on, Error(kOutOfMemory).
  DecodeFp8(const AttentionProblem& problem, const AttentionPlan& plan, const DeviceInfo& device, const Limits& limits);

  /// Makes the work list from lengths and block table in device memory: once a step. No synchronisation; graph-safe.
  void schedule(const AttentionArgs& args, cudaStream_t stream);

  /// One layer. The lengths and the block table are those of the last schedule(). The caller has checked `args` against
  /// the problem; what only the device can see is trusted: lengths that fit the block table, at most 32 query rows a kv
  /// head, page ids inside the pool.
  void run(const AttentionArgs& args, cudaStream_t stream, InFront in_front = InFront::kAnything);

  [[nodiscard]] int grid() const noexcept { return grid_; }
  /// Query rows a kv head; sequences with more are not worked on. A span has several tokens and needs a kernel that
  /// knows spans, so that of a step with spans single tokens are left.
  [[nodiscard]] int max_rows(const AttentionArgs& args) const noexcept {
    return args.span_ids.given() ? work_->shape().group : max_rows_;
  }

 private:
  AttentionProblem problem_;
  AttentionPlan plan_;
  int grid_ = 0;
  bool combine_in_kernel_ = true;
  std::unique_ptr<schedule::WorkList> work_;
  DeviceBuffer<float> partial_out_;
  DeviceBuffer<float2> partial_max_sum_;
  DeviceBuffer<int> arrived_;
  int max_rows_ = 0;
};

}  // namespace quaver::decode_fp8
