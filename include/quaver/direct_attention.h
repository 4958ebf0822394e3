// Attention as a function of Q, K and V in plain tensors: no cache and no pages to manage. K and V are packed into
// pages of a scratch workspace, then the planned kernel runs (docs/attention.md). Plain C++20, no CUDA header.
#pragma once

#include <cstdint>
#include <memory>

#include "quaver/attention.h"
#include "quaver/tensor.h"

namespace quaver {

/// The tensors of one call, all on one device. Two forms:
///   batched  q [B, Sq, Hq, Dk], k [B, Sk, Hkv, Dk], v [B, Sk, Hkv, Dv]: equal lengths, no starts
///   varlen   q [Tq, Hq, Dk], k [Tk, Hkv, Dk], v [Tk, Hkv, Dv]: query_start and key_start say whose rows they are
/// out, lse and span_ids have q's form. Rows see keys as AttentionArgs says: causal masks align bottom-right.
/// Optional views are left default ("not given").
struct DirectAttentionArgs {
  ConstTensorView q;  ///< bf16, e4m3 codes (e4m3 or u8) or f32, any strides; widened or rounded to bf16, on the
                      ///< CPU f32 stays as it is
  ConstTensorView k;  ///< bf16, e4m3 codes (e4m3 or u8) or f32, any strides
  ConstTensorView v;  ///< likewise
  ConstTensorView
      query_start;            ///< [B+1] i32, varlen only: sequence b owns rows query_start[b] … query_start[b+1]-1 of q
  ConstTensorView key_start;  ///< [B+1] i32, varlen only: and rows key_start[b] … key_start[b+1]-1 of k and v
  ConstTensorView k_scale;    ///< [Hkv] f32, optional (1.0): real K = stored K * k_scale. E4M3 codes are stored as they
                              ///< are, values are divided by it first
  ConstTensorView v_scale;    ///< [Hkv] f32, optional (1.0)
  ConstTensorView q_descale;  ///< [B, Hkv] f32, any strides, optional: multiplies the logits
  ConstTensorView k_descale;  ///< [B, Hkv] f32, any strides, optional: multiplies the logits
  ConstTensorView v_descale;  ///< [B, Hkv] f32, any strides, optional: multiplies the output
  ConstTensorView sinks;      ///< [Hq] f32, optional, as AttentionArgs
  ConstTensorView span_ids;   ///< i32, optional: image spans of the query tokens, as AttentionArgs
  float softmax_scale = 1.0F;  ///< multiplies q·k before softcap
  TensorView out;              ///< bf16 or f32; last dim dense, sequences one after the other
  TensorView lse;              ///< [..., Hq] f32, optional: natural log, -inf where a row sees no key
};

/// Runs calls on one device, on one stream at a time: they share its workspace, which grows to the largest call and is
/// kept. Not thread-safe.
class DirectAttention {
 public:
  /// Throws Error(kUnsupported) for a GPU in a build without CUDA, Error(kCuda) for one that is not there.
  explicit DirectAttention(Device device);
  ~DirectAttention();
  DirectAttention(DirectAttention&&) noexcept;
  DirectAttention& operator=(DirectAttention&&) noexcept;
  DirectAttention(const DirectAttention&) = delete;
  DirectAttention& operator=(const DirectAttention&) = delete;

  /// `problem` as of plan_attention(): kv.dtype is what K and V are stored as (kBF16 keeps BF16 and widens E4M3
  /// exactly, kE4M3 keeps E4M3 and quantises the rest); arch is replaced by that of the device. `stream` is a
  /// cudaStream_t; the CPU has none. On a GPU nothing waits for the device, unless the workspace grows; starts in
  /// device memory are trusted: ascending, inside q and k, at most problem.max_query_len query tokens each. Throws
  /// Error(kInvalidArgument) naming tensor, value and what was expected, Error(kUnsupported) with the policy's
  /// sentence, Error(kOutOfMemory).
  void run(AttentionProblem problem, const DirectAttentionArgs& args, void* stream = nullptr);

  /// What runs a call.
  class Backend;

 private:
  std::unique_ptr<Backend> backend_;
};

}  // namespace quaver
