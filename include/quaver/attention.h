// Attention over the paged KV cache: what the caller asks (AttentionProblem), what will run (AttentionPlan),
// and the tensors of one call (AttentionArgs). Plain C++20, no CUDA header.
//
// Dimension alphabet: B sequences, T query tokens of the whole batch, Hq query heads, Hkv kv heads, D head dim.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "quaver/kv_cache.h"
#include "quaver/tensor.h"

namespace quaver {

/// Numerics of Q and P on the FP8 tensor cores (docs/numerics.md).
enum class Precision : uint8_t {
  kAuto,    ///< the policy chooses
  kSingle,  ///< E4M3 Q (one power-of-two scale per row) and E4M3 P: the source system's native FP8
  kSplit,   ///< Q and P as hi + lo/16, both E4M3: BF16 accuracy
  kFull,    ///< FP32 arithmetic on the stored K and V (CPU path, general kernel)
};

/// Every kernel that a plan can name.
enum class AttentionKernel : uint8_t {
  kCpu,          ///< fast CPU path, FP32 arithmetic
  kCpuEmulated,  ///< CPU emulation of the FP8 kernels' arithmetic (tests, docs/numerics.md)
  kDecodeFp8,    ///< sm_90a decode: group * q_len <= 32 rows a kv head
  kPrefillFp8,   ///< sm_90a prefill
  kGeneral,      ///< plain CUDA kernel for everything else
};

/// What the caller asks; pure values, so a decision can be made and tested without memory or a GPU.
struct AttentionProblem {
  int arch = 0;                      ///< 0: CPU; else compute capability as major * 10 + minor (90 for H100/H200)
  int num_q_heads = 0;               ///< a multiple of kv.num_kv_heads
  KvLayout kv{};                     ///< head dims, kv heads, cache dtype, page size
  int max_query_len = 1;             ///< most query tokens of one sequence in a call
  int window = 0;                    ///< sliding window in keys, the token itself included; 0: none
  bool causal = true;                ///< bottom-right aligned
  float softcap = 0.0F;              ///< logits become softcap * tanh(logit / softcap); 0: none
  bool sinks = false;                ///< one extra logit per query head in the normaliser
  bool bidirectional_spans = false;  ///< tokens of one image span see each other (Gemma 4 vision)
  bool batch_invariant = false;      ///< results must not depend on batch-mates
  Precision precision = Precision::kAuto;
  std::optional<AttentionKernel> kernel;  ///< the user's override: kept, or refused with a reason
  friend bool operator==(const AttentionProblem&, const AttentionProblem&) = default;
};

/// What will run. Printable with to_string(); produced only by plan_attention().
struct AttentionPlan {
  AttentionKernel kernel = AttentionKernel::kCpu;
  Precision precision = Precision::kFull;
  int kv_tile = 64;         ///< tokens of one KV tile; tiles start at absolute multiples of it
  int max_rows = 0;         ///< query rows (group * q_len) a kv head that the kernel takes; 0: any number
  int split_tokens = 0;     ///< fixed split boundary in tokens (batch-invariant mode); 0: cuts follow the load
  bool promote_qk = false;  ///< FP32 promotion of the QK accumulator every K = 128
  std::string reason{};     ///< one sentence: why this kernel and these numerics
};

/// Why no plan exists; one sentence that names the offending value and what is supported.
struct Unsupported {
  std::string reason;
};

/// The policy: a pure function, no CUDA call (src/attention/policy.cpp; docs/dispatch.md lists the rules).
[[nodiscard]] std::variant<AttentionPlan, Unsupported> plan_attention(const AttentionProblem& problem);

[[nodiscard]] std::string to_string(const AttentionProblem& problem);
[[nodiscard]] std::string to_string(const AttentionPlan& plan);

/// The decision for people: kernel, numerics with their measured error, tile, why, and what would change it.
/// `quaver explain` prints it.
[[nodiscard]] std::string explain(const AttentionProblem& problem);

[[nodiscard]] std::string_view kernel_name(AttentionKernel kernel) noexcept;
[[nodiscard]] std::string_view precision_name(Precision precision) noexcept;

/// The tensors of one call. All on one device. Optional views are left default ("not given").
/// Query row i of a sequence with q_len rows and kv_len keys sits at position kv_len - q_len + i. It sees the keys
/// 0 … position (causal) or all keys, less those further than window - 1 tokens away.
/// A span is a run of neighbouring query tokens of one sequence with the same span id >= 0. Its tokens also see the
/// later tokens of the span (the window bounds the past only). Different spans of a sequence have different ids, and
/// spans are known for the query tokens of the call only, so a chunk must not end inside one.
/// Rows of q past query_start[B] belong to no sequence; their outputs are left alone.
struct AttentionArgs {
  ConstTensorView q;            ///< [T, Hq, Dk] bf16 (or f32 on the CPU); token and head strides free, last dim dense
  ConstTensorView pages;        ///< [num_pages, page_bytes] u8: one layer's slab, see src/kv_cache/page_format.h
  ConstTensorView block_table;  ///< [B, max_pages] i32; entry j is the page of tokens [j*P, (j+1)*P); -1 where unused
  ConstTensorView seq_lens;     ///< [B] i32: keys of each sequence, the query tokens included
  ConstTensorView query_start;  ///< [B+1] i32: sequence b owns query rows query_start[b] … query_start[b+1]-1
  ConstTensorView k_scale;      ///< [Hkv] f32, optional (1.0): real K = stored K * k_scale
  ConstTensorView v_scale;      ///< [Hkv] f32, optional (1.0)
  ConstTensorView q_descale;    ///< [B, Hkv] f32, any strides, optional: multiplies the logits
  ConstTensorView k_descale;    ///< [B, Hkv] f32, any strides, optional: multiplies the logits
  ConstTensorView v_descale;    ///< [B, Hkv] f32, any strides, optional: multiplies the output
  ConstTensorView sinks;        ///< [Hq] f32, optional: logits (natural units, after softcap) added to the normaliser
  ConstTensorView span_ids;     ///< [T] i32, optional: image spans, see below; -1: plain text
  float softmax_scale = 1.0F;   ///< multiplies q·k before softcap
  TensorView out;               ///< [T, Hq, Dv] bf16 or f32; token and head strides free, last dim dense
  TensorView lse;               ///< [T, Hq] f32, optional: natural log, -inf where a row sees no key
};

/// Checks every tensor of `args` against `problem` (shapes, dtypes, strides, alignment, lengths, page ids in use) and
/// runs `plan` on the CPU. Throws Error(kInvalidArgument) that names the tensor, its value and what was expected, and
/// Error(kUnsupported) for the plan of a CUDA kernel: those own a stream and a workspace.
void run_attention(const AttentionProblem& problem, const AttentionPlan& plan, const AttentionArgs& args);

}  // namespace quaver
