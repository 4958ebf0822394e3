#include "attention/checks.h"

#include <string>

#include "core/check.h"
#include "kv_cache/page_format.h"

namespace quaver {
namespace {

constexpr int64_t kAny = -1;

struct Expected {
  std::string_view name;
  std::initializer_list<int64_t> shape;  // kAny: free
  DType dtype = DType::kF32;
  bool optional = false;
  bool or_f32 = false;
};

std::string shape_text(std::initializer_list<int64_t> shape) {
  std::string text;
  for (const int64_t dim : shape) text += (text.empty() ? "" : ", ") + (dim == kAny ? "any" : std::to_string(dim));
  return "[" + text + "]";
}

void check_tensor(const ConstTensorView& view, const Expected& expected, Device device) {
  if (!view.given()) {
    bool empty = false;  // an empty tensor may have no memory
    for (int axis = 0; axis < view.rank; ++axis) empty = empty || view.dim(axis) == 0;
    check(expected.optional || empty, expected.name, " (none): expected ", shape_text(expected.shape));
    if (!empty) return;
  }
  check(view.dtype == expected.dtype || (expected.or_f32 && view.dtype == DType::kF32), expected.name, " ",
        to_string(view), ": expected dtype ", dtype_name(expected.dtype), expected.or_f32 ? " or f32" : "");
  bool shape_ok = view.rank == static_cast<int>(expected.shape.size());
  int axis = 0;
  for (const int64_t dim : expected.shape) {
    shape_ok = shape_ok && (dim == kAny || view.dim(axis) == dim);
    ++axis;
  }
  check(shape_ok, expected.name, " ", to_string(view), ": expected shape ", shape_text(expected.shape));
  check(view.device == device, expected.name, " ", to_string(view), ": expected on ", to_string(device));
  const auto address = reinterpret_cast<uintptr_t>(view.data);
  check(address % static_cast<uintptr_t>(dtype_bytes(view.dtype)) == 0, expected.name, " address ", view.data,
        ": expected a multiple of ", dtype_bytes(view.dtype));
}

void check_dense_rows(const ConstTensorView& view, std::string_view name) {
  const int axis = view.rank - 1;
  check(view.dim(axis) <= 1 || view.stride(axis) == 1, name, " stride ", view.stride(axis),
        " of the last dimension: expected 1");
}

void check_writable(const ConstTensorView& view, std::string_view name) {
  for (int axis = 0; axis < view.rank; ++axis) {
    check(view.dim(axis) <= 1 || view.stride(axis) != 0, name, " stride 0 of dimension ", axis,
          ": expected an output whose elements are distinct");
  }
}

int64_t int_at(const ConstTensorView& view, int64_t i, int64_t j = 0) {
  return static_cast<const int32_t*>(view.data)[i * view.strides[0] + j * view.strides[1]];
}

}  // namespace

void check_tensors(const AttentionProblem& problem, const AttentionArgs& args) {
  const KvLayout& kv = problem.kv;
  const Device device = args.q.device;
  const bool cpu = problem.arch == 0;
  check((device.kind == Device::Kind::kCpu) == cpu, "q on ", to_string(device), ": expected on ", cpu ? "cpu" : "cuda");
  check(args.q.rank == 3, "q ", to_string(args.q), ": expected rank 3, [tokens, q_heads, head_dim]");
  check(args.seq_lens.rank == 1, "seq_lens ", to_string(args.seq_lens), ": expected rank 1, [sequences]");
  const int64_t tokens = args.q.dim(0);
  const int64_t batch = args.seq_lens.dim(0);
  const int64_t q_heads = problem.num_q_heads;
  const int64_t kv_heads = kv.num_kv_heads;

  check_tensor(args.q, {"q", {tokens, q_heads, kv.head_dim_k}, DType::kBF16, false, cpu}, device);
  check_dense_rows(args.q, "q");
  check_tensor(args.out, {"out", {tokens, q_heads, kv.head_dim_v}, DType::kBF16, false, true}, device);
  check_dense_rows(args.out, "out");
  check_writable(args.out, "out");
  check_tensor(args.lse, {"lse", {tokens, q_heads}, DType::kF32, true}, device);
  check_writable(args.lse, "lse");

  check_tensor(args.pages, {"pages", {kAny, kAny}, DType::kU8}, device);
  check_dense_rows(args.pages, "pages");
  const int64_t page_bytes = page_format::page_bytes(kv);
  check(args.pages.dim(1) >= page_bytes, "pages ", to_string(args.pages), ": expected at least ", page_bytes,
        " bytes a page");
  check(args.pages.dim(0) <= 1 || args.pages.stride(0) >= page_bytes, "pages stride ", args.pages.stride(0),
        ": expected at least ", page_bytes);
  if (!cpu) {  // bulk copies move 16-byte units
    check(reinterpret_cast<uintptr_t>(args.pages.data) % 16 == 0 && args.pages.stride(0) % 16 == 0, "pages address ",
          args.pages.data, " and stride ", args.pages.stride(0), ": expected multiples of 16 bytes");
  }

  check_tensor(args.block_table, {"block_table", {batch, kAny}, DType::kI32}, device);
  check_tensor(args.seq_lens, {"seq_lens", {batch}, DType::kI32}, device);
  check_tensor(args.query_start, {"query_start", {batch + 1}, DType::kI32}, device);
  check_tensor(args.k_scale, {"k_scale", {kv_heads}, DType::kF32, true}, device);
  check_tensor(args.v_scale, {"v_scale", {kv_heads}, DType::kF32, true}, device);
  check_tensor(args.q_descale, {"q_descale", {batch, kv_heads}, DType::kF32, true}, device);
  check_tensor(args.k_descale, {"k_descale", {batch, kv_heads}, DType::kF32, true}, device);
  check_tensor(args.v_descale, {"v_descale", {batch, kv_heads}, DType::kF32, true}, device);
  check_tensor(args.sinks, {"sinks", {q_heads}, DType::kF32, !problem.sinks}, device);
  check(problem.sinks || !args.sinks.given(), "sinks ", to_string(args.sinks),
        ": expected none (problem.sinks is off)");
  check_tensor(args.span_ids, {"span_ids", {tokens}, DType::kI32, true}, device);
  check(problem.bidirectional_spans || !args.span_ids.given(), "span_ids ", to_string(args.span_ids),
        ": expected none (problem.bidirectional_spans is off)");
}

void check_lengths(const AttentionProblem& problem, const AttentionArgs& args) {
  const int64_t batch = args.seq_lens.dim(0);
  const int64_t page_size = problem.kv.page_size;
  check(int_at(args.query_start, 0) >= 0, "query_start[0] ", int_at(args.query_start, 0), ": expected at least 0");
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t first = int_at(args.query_start, b);
    const int64_t q_len = int_at(args.query_start, b + 1) - first;
    check(q_len >= 0, "query_start[", b + 1, "] ", first + q_len, ": expected at least query_start[", b, "] ", first);
    check(q_len <= problem.max_query_len, "query tokens of sequence ", b, " ", q_len, ": expected at most ",
          problem.max_query_len, " (max_query_len)");
    const int64_t length = int_at(args.seq_lens, b);
    check(length >= 0, "seq_lens[", b, "] ", length, ": expected at least 0");
    const int64_t pages = (length + page_size - 1) / page_size;
    check(pages <= args.block_table.dim(1), "block_table ", to_string(args.block_table), ": expected at least ", pages,
          " pages for the ", length, " keys of sequence ", b);
    const int64_t oldest = length - q_len - problem.window + 1;  // first key that the first token sees
    const int64_t first_page = problem.window > 0 && oldest > 0 ? oldest / page_size : 0;
    for (int64_t j = first_page; q_len > 0 && j < pages; ++j) {
      const int64_t page = int_at(args.block_table, b, j);
      check(page >= 0 && page < args.pages.dim(0), "block_table[", b, ", ", j, "] ", page,
            ": expected a page id below ", args.pages.dim(0));
    }
  }
  check(int_at(args.query_start, batch) <= args.q.dim(0), "query_start[", batch, "] ", int_at(args.query_start, batch),
        ": expected at most the ", args.q.dim(0), " rows of q");
}

}  // namespace quaver
