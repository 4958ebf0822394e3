// What DirectAttention hands a call to, and what both backends do alike: checks, sizes, the paged call.
#pragma once

#include <memory>
#include <optional>

#include "attention/direct/pack.h"
#include "quaver/direct_attention.h"

namespace quaver {

class DirectAttention::Backend {
 public:
  Backend() = default;
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  Backend(Backend&&) = delete;
  Backend& operator=(Backend&&) = delete;
  virtual void run(AttentionProblem problem, const DirectAttentionArgs& args, void* stream) = 0;
};

namespace direct {

/// Sizes of a call.
struct CallShape {
  bool batched = false;
  int64_t num_sequences = 0;
  int64_t num_queries = 0;  ///< rows of q, all sequences together
  int64_t num_keys = 0;
  int64_t query_len = 0;  ///< of each sequence, batched form only
  int64_t key_len = 0;
  /// Whose rows are whose; `starts` in the memory of the device, null in the batched form.
  [[nodiscard]] Sequences queries(const int32_t* starts) const;
  [[nodiscard]] Sequences keys(const int32_t* starts) const;
  [[nodiscard]] int64_t num_pages(int page_size) const;
  /// Entries a sequence needs in a block table at most.
  [[nodiscard]] int64_t max_pages(int page_size) const;
};

/// Shapes, dtypes and devices of q, k, v, the starts, out, lse and span_ids. Throws Error(kInvalidArgument). The rest
/// is checked with the paged call.
[[nodiscard]] CallShape check_call(const AttentionProblem& problem, const DirectAttentionArgs& args, Device device);

/// `view` with batch and token as one dimension; none where its strides do not allow it. Varlen views stay.
[[nodiscard]] std::optional<ConstTensorView> flat(const ConstTensorView& view, bool batched);

/// Memory of a paged call that the caller of the direct one does not see.
struct Scratch {
  uint8_t* pages = nullptr;
  int32_t* block_table = nullptr;
  int32_t* seq_lens = nullptr;
  const int32_t* query_start = nullptr;  ///< the caller's, or made for the batched form
};

/// The paged call; `q` as the kernels take it.
[[nodiscard]] AttentionArgs paged_args(const AttentionProblem& problem, const DirectAttentionArgs& args,
                                       const CallShape& shape, const ConstTensorView& q, const Scratch& scratch);

[[nodiscard]] KvPack kv_pack(const AttentionProblem& problem, const DirectAttentionArgs& args, const CallShape& shape,
                             uint8_t* pages);

[[nodiscard]] std::unique_ptr<DirectAttention::Backend> make_cpu_backend();
/// In a build without CUDA (no_cuda.cpp) throws Error(kUnsupported).
[[nodiscard]] std::unique_ptr<DirectAttention::Backend> make_cuda_backend(int index);

}  // namespace direct
}  // namespace quaver
