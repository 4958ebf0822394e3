#include <string>

#include "attention/direct/backend.h"
#include "core/check_view.h"
#include "kv_cache/page_format.h"

namespace quaver::direct {
namespace {

/// Q, K or V.
void check_rows(const char* name, const ConstTensorView& view, int rank, int heads, int dim, Device device) {
  check_view(view.rank == rank, name, view,
             rank == 4 ? "[batch, tokens, heads, dim] as q" : "[tokens, heads, dim] as q");
  check_view(view.dim(rank - 2) == heads && view.dim(rank - 1) == dim, name, view, heads, " heads of dim ", dim);
  const DType dtype = view.dtype;
  check_view(dtype == DType::kBF16 || dtype == DType::kF32 || dtype == DType::kE4M3 || dtype == DType::kU8, name, view,
             "dtype bf16, f32, e4m3 or u8 (E4M3 codes)");
  check_view(view.num_elements() == 0 || view.given(), name, view, "a tensor");
  check_view(!view.given() || view.device == device, name, view, "a tensor on ", to_string(device));
}

/// Starts of sequences, and their number.
int64_t check_starts(const char* name, const ConstTensorView& view, Device device) {
  check_view(view.given() && view.dtype == DType::kI32 && view.rank == 1 && view.dim(0) >= 1, name, view,
             "i32 [sequences + 1] beside q, k and v of rank 3");
  check_view(view.dim(0) == 1 || view.stride(0) == 1, name, view, "a dense tensor");
  check_view(view.device == device, name, view, "a tensor on ", to_string(device));
  return view.dim(0) - 1;
}

/// Host memory only: ascending and inside `num_rows`.
void check_start_values(const char* name, const ConstTensorView& view, int64_t num_rows) {
  const auto* const starts = static_cast<const int32_t*>(view.data);
  int64_t previous = 0;
  for (int64_t i = 0; i < view.dim(0); ++i) {
    check(starts[i] >= previous && starts[i] <= num_rows, name, "[", i, "] ", starts[i], ": expected ", previous,
          " to ", num_rows);
    previous = starts[i];
  }
}

/// Out, lse and span ids lie as q does, and their batch and token dimensions are one.
void check_like_q(const char* name, const ConstTensorView& view, const ConstTensorView& q, int rank) {
  bool same = view.rank == rank;
  for (int axis = 0; same && axis < q.rank - 2; ++axis) same = view.dim(axis) == q.dim(axis);
  check_view(same, name, view, "the tokens of q ", to_string(q));
  check_view(flat(view, q.rank == 4).has_value(), name, view, "sequences that follow each other in memory");
}

}  // namespace

Sequences CallShape::queries(const int32_t* starts) const {
  return {.starts = starts, .equal_length = query_len, .count = num_sequences};
}

Sequences CallShape::keys(const int32_t* starts) const {
  return {.starts = starts, .equal_length = key_len, .count = num_sequences};
}

int64_t CallShape::num_pages(int page_size) const {
  return num_scratch_pages(num_keys, num_sequences, page_size);
}

int64_t CallShape::max_pages(int page_size) const {
  return (batched ? key_len : num_keys) / page_size + 1;
}

CallShape check_call(const AttentionProblem& problem, const DirectAttentionArgs& args, Device device) {
  const KvLayout& kv = problem.kv;
  const ConstTensorView& q = args.q;
  const ConstTensorView& k = args.k;
  const ConstTensorView& v = args.v;
  check_layout(kv);
  check_view(q.rank == 3 || q.rank == 4, "q", q, "[tokens, heads, dim] or [batch, tokens, heads, dim]");
  check_rows("q", q, q.rank, problem.num_q_heads, kv.head_dim_k, device);
  check_rows("k", k, q.rank, kv.num_kv_heads, kv.head_dim_k, device);
  check_rows("v", v, q.rank, kv.num_kv_heads, kv.head_dim_v, device);
  const int token = q.rank - 3;
  check_view(v.dim(token) == k.dim(token), "v", v, "the ", k.dim(token), " tokens of k");
  CallShape shape{.batched = q.rank == 4};
  if (shape.batched) {
    check_view(!args.query_start.given() && !args.key_start.given(), "query_start", args.query_start,
               "none beside q of rank 4");
    check_view(k.dim(0) == q.dim(0), "k", k, "the batch of q, ", q.dim(0));
    check_view(v.dim(0) == q.dim(0), "v", v, "the batch of q, ", q.dim(0));
    shape.num_sequences = q.dim(0);
    shape.query_len = q.dim(1);
    shape.key_len = k.dim(1);
    shape.num_queries = shape.num_sequences * shape.query_len;
    shape.num_keys = shape.num_sequences * shape.key_len;
    check(shape.query_len <= problem.max_query_len, "q tokens of a sequence ", shape.query_len, ": expected at most ",
          problem.max_query_len, " (max_query_len)");
  } else {
    shape.num_sequences = check_starts("query_start", args.query_start, device);
    check_view(check_starts("key_start", args.key_start, device) == shape.num_sequences, "key_start", args.key_start,
               "as many starts as query_start, ", shape.num_sequences + 1);
    shape.num_queries = q.dim(0);
    shape.num_keys = k.dim(0);
    if (device.kind == Device::Kind::kCpu) {
      check_start_values("query_start", args.query_start, shape.num_queries);
      check_start_values("key_start", args.key_start, shape.num_keys);
    }
  }
  check(shape.num_queries <= INT32_MAX && shape.num_keys <= INT32_MAX, "tokens ", shape.num_queries, " of q and ",
        shape.num_keys, " of k: expected at most ", INT32_MAX);
  check_like_q("out", args.out, q, q.rank);
  if (args.lse.given()) check_like_q("lse", args.lse, q, q.rank - 1);
  if (args.span_ids.given()) check_like_q("span_ids", args.span_ids, q, q.rank - 2);
  return shape;
}

std::optional<ConstTensorView> flat(const ConstTensorView& view, bool batched) {
  if (!batched) return view;
  const int64_t batch = view.dim(0);
  const int64_t tokens = view.dim(1);
  const int64_t stride = tokens == 1 ? view.stride(0) : view.stride(1);
  if (batch > 1 && tokens > 1 && view.stride(0) != tokens * stride) return std::nullopt;
  ConstTensorView merged = view;
  merged.rank = view.rank - 1;
  merged.shape.front() = batch * tokens;
  merged.strides.front() = stride;
  for (size_t axis = 1; axis < static_cast<size_t>(merged.rank); ++axis) {
    merged.shape.at(axis) = view.shape.at(axis + 1);
    merged.strides.at(axis) = view.strides.at(axis + 1);
  }
  return merged;
}

AttentionArgs paged_args(const AttentionProblem& problem, const DirectAttentionArgs& args, const CallShape& shape,
                         const ConstTensorView& q, const Scratch& scratch) {
  const int64_t batch = shape.num_sequences;
  const int page_size = problem.kv.page_size;
  const auto flat_output = [&](const TensorView& view) {
    const ConstTensorView merged = flat(view, shape.batched).value_or(view);  // check_call() refuses others
    TensorView output = view;
    output.rank = merged.rank;
    output.shape = merged.shape;
    output.strides = merged.strides;
    return output;
  };
  return {
      .q = q,
      .pages = {scratch.pages, DType::kU8, {shape.num_pages(page_size), page_format::page_bytes(problem.kv)}, q.device},
      .block_table = {scratch.block_table, DType::kI32, {batch, shape.max_pages(page_size)}, q.device},
      .seq_lens = {scratch.seq_lens, DType::kI32, {batch}, q.device},
      .query_start = {scratch.query_start, DType::kI32, {batch + 1}, q.device},
      .k_scale = args.k_scale,
      .v_scale = args.v_scale,
      .q_descale = args.q_descale,
      .k_descale = args.k_descale,
      .v_descale = args.v_descale,
      .sinks = args.sinks,
      .span_ids =
          args.span_ids.given() ? flat(args.span_ids, shape.batched).value_or(args.span_ids) : ConstTensorView{},
      .softmax_scale = args.softmax_scale,
      .out = flat_output(args.out),
      .lse = args.lse.given() ? flat_output(args.lse) : TensorView{}};
}

KvPack kv_pack(const AttentionProblem& problem, const DirectAttentionArgs& args, const CallShape& shape,
               uint8_t* pages) {
  return {.layout = problem.kv,
          .k = source_of(args.k),
          .v = source_of(args.v),
          .keys = shape.keys(static_cast<const int32_t*>(args.key_start.data)),
          .k_scale = static_cast<const float*>(args.k_scale.data),
          .k_scale_stride = args.k_scale.strides.front(),
          .v_scale = static_cast<const float*>(args.v_scale.data),
          .v_scale_stride = args.v_scale.strides.front(),
          .pages = pages,
          .num_keys = shape.num_keys};
}

}  // namespace quaver::direct
