#include "attention/device_attention.h"

#include <algorithm>
#include <string_view>

#include "attention/checks.h"
#include "attention/general/launch.h"
#include "attention/tiles.h"

namespace quaver {
namespace {

/// Kernels read these by index alone.
void check_dense(const ConstTensorView& view, std::string_view name) {
  const int axis = view.rank - 1;
  check(!view.given() || view.dim(axis) <= 1 || view.stride(axis) == 1, name, " stride ",
        view.given() ? view.stride(axis) : 0, " of the last dimension: expected 1");
}

/// Rows are read and written `elements` at a time.
void check_alignment(const ConstTensorView& view, std::string_view name, int64_t elements) {
  const auto bytes = static_cast<uintptr_t>(elements * dtype_bytes(view.dtype));
  check(reinterpret_cast<uintptr_t>(view.data) % bytes == 0, name, " address ", view.data, ": expected a multiple of ",
        bytes, " bytes");
  for (int axis = 0; axis + 1 < view.rank; ++axis) {
    check(view.stride(axis) % elements == 0, name, " stride ", view.stride(axis), " of dimension ", axis,
          ": expected a multiple of ", elements);
  }
}

/// The decode kernel beside a prefill kernel: sequences of few rows are its own. None where it cannot take them, or
/// where the user asked for the prefill kernel by name.
std::optional<AttentionPlan> companion_plan(AttentionProblem& problem, int max_query_len) {
  if (problem.kernel) return std::nullopt;
  problem.bidirectional_spans = false;  // DecodeFp8::max_rows()
  problem.max_query_len = tiles::kMaxDecodeRows / (problem.num_q_heads / problem.kv.num_kv_heads);
  if (max_query_len > 0) problem.max_query_len = std::min(problem.max_query_len, max_query_len);
  problem.kernel = AttentionKernel::kDecodeFp8;
  const auto decision = plan_attention(problem);
  const auto* plan = std::get_if<AttentionPlan>(&decision);
  return plan == nullptr ? std::nullopt : std::optional(*plan);
}

}  // namespace

DeviceAttention::DeviceAttention(const AttentionProblem& problem, const AttentionPlan& plan, const DeviceInfo& device,
                                 const DeviceAttentionLimits& limits)
    : problem_(problem) {
  const decode_fp8::Limits decode_limits{.max_sequences = limits.max_sequences, .max_kv_tokens = limits.max_kv_tokens};
  switch (plan.kernel) {
    case AttentionKernel::kDecodeFp8: decode_.emplace(problem, plan, device, decode_limits); return;
    case AttentionKernel::kPrefillFp8: {
      AttentionProblem few_rows = problem;
      const auto companion = companion_plan(few_rows, limits.max_decode_query_len);
      if (companion) decode_.emplace(few_rows, *companion, device, decode_limits);
      prefill_.emplace(problem, plan, device, limits.max_sequences, limits.max_tokens);
      return;
    }
    case AttentionKernel::kGeneral: general::prepare(problem, device); return;
    default: break;
  }
  fail(ErrorKind::kUnsupported, "kernel ", kernel_name(plan.kernel), ": expected decode_fp8, prefill_fp8 or general");
}

void DeviceAttention::schedule(const AttentionArgs& args, cudaStream_t stream) {
  check_dense(args.seq_lens, "seq_lens");
  check_dense(args.query_start, "query_start");
  check_dense(args.block_table, "block_table");
  check_dense(args.span_ids, "span_ids");
  if (decode_) decode_->schedule(args, stream);
  if (prefill_) prefill_->schedule(args, decode_ ? decode_->max_rows(args) + 1 : 1, stream);
}

void DeviceAttention::run(const AttentionArgs& args, cudaStream_t stream, InFront in_front) {
  check_tensors(problem_, args);
  check_dense(args.seq_lens, "seq_lens");
  check_dense(args.query_start, "query_start");
  check_dense(args.block_table, "block_table");
  check_dense(args.k_scale, "k_scale");
  check_dense(args.v_scale, "v_scale");
  check_dense(args.sinks, "sinks");
  check_dense(args.span_ids, "span_ids");
  if (!decode_ && !prefill_) return general::run(problem_, args, stream);
  check_alignment(args.q, "q", prefill_ ? 8 : 4);
  check_alignment(args.out, "out", prefill_ ? 8 : 2);
  if (prefill_) prefill_->run(args, stream);
  if (decode_) decode_->run(args, stream, in_front);
}

}  // namespace quaver
