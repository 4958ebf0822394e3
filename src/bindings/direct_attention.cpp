// Attention on tensors of any framework that speaks DLPack. python/quaver/direct_attention.py is what people call.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <string>

#include "bindings/bindings.h"
#include "bindings/names.h"
#include "core/check.h"
#include "quaver/direct_attention.h"

namespace nb = nanobind;

namespace quaver::bindings {
namespace {

using Input = nb::ndarray<nb::ro>;
using OptionalInput = std::optional<Input>;
using Output = nb::ndarray<>;

Device device_of(const char* name, int type, int index) {
  if (type == nb::device::cpu::value || type == nb::device::cuda_host::value) return {};
  check(type == nb::device::cuda::value || type == nb::device::cuda_managed::value, name, " on DLPack device ", type,
        ": expected on the CPU (1) or a CUDA GPU (2)");
  return {.kind = Device::Kind::kCuda, .index = index};
}

DType dtype_of(const char* name, nb::dlpack::dtype dtype) {
  const auto is = [&](nb::dlpack::dtype_code code, int bits) {
    return dtype.code == static_cast<uint8_t>(code) && dtype.bits == bits && dtype.lanes == 1;
  };
  using Code = nb::dlpack::dtype_code;
  if (is(Code::Float, 32)) return DType::kF32;
  if (is(Code::Bfloat, 16)) return DType::kBF16;
  if (is(Code::Float8_E4M3FN, 8)) return DType::kE4M3;
  if (is(Code::UInt, 8)) return DType::kU8;
  if (is(Code::Int, 32)) return DType::kI32;
  if (is(Code::Int, 64)) return DType::kI64;
  if (is(Code::Float, 16)) return DType::kF16;
  if (is(Code::Float, 64)) return DType::kF64;
  fail(ErrorKind::kInvalidArgument, name, " of DLPack dtype ", static_cast<int>(dtype.code), " with ",
       static_cast<int>(dtype.bits), " bits: expected float32, bfloat16, float8_e4m3fn, uint8 or int32");
}

template <class View, class Array>
View view_of(const char* name, const Array& array) {
  check(array.ndim() <= static_cast<size_t>(kMaxRank), name, " of rank ", array.ndim(), ": expected at most ",
        kMaxRank);
  View view;
  view.data = array.data();
  view.dtype = dtype_of(name, array.dtype());
  view.rank = static_cast<int>(array.ndim());
  for (size_t axis = 0; axis < array.ndim(); ++axis) {
    view.shape.at(axis) = static_cast<int64_t>(array.shape(axis));
    view.strides.at(axis) = array.stride(axis);
  }
  view.device = device_of(name, array.device_type(), array.device_id());
  return view;
}

ConstTensorView input(const char* name, const Input& array) {
  return view_of<ConstTensorView>(name, array);
}

ConstTensorView input(const char* name, const OptionalInput& array) {
  return array ? view_of<ConstTensorView>(name, *array) : ConstTensorView{};
}

bool is_e4m3(const ConstTensorView& view) {
  return view.dtype == DType::kE4M3 || view.dtype == DType::kU8;
}

/// Dimension `from_the_end` of q, k or v as an int of a problem.
int dim_of(const char* name, const ConstTensorView& view, int from_the_end) {
  check(view.rank == 3 || view.rank == 4, name, " ", to_string(view),
        ": expected [tokens, heads, dim] or [batch, tokens, heads, dim]");
  const int64_t dim = view.dim(view.rank - from_the_end);
  check(dim <= INT32_MAX, name, " ", to_string(view), ": expected dimensions below 2^31");
  return static_cast<int>(dim);
}

void run(DirectAttention& attention, const Input& q, const Input& k, const Input& v, const Output& out,
         const std::optional<Output>& lse, const OptionalInput& query_start, const OptionalInput& key_start,
         const OptionalInput& k_scale, const OptionalInput& v_scale, const OptionalInput& q_descale,
         const OptionalInput& k_descale, const OptionalInput& v_descale, const OptionalInput& sinks,
         const OptionalInput& span_ids, std::optional<int> max_query_len, bool causal, int window, float softcap,
         float softmax_scale, const std::optional<std::string>& kv_dtype, int page_size, bool batch_invariant,
         std::string_view precision, const std::optional<std::string>& kernel, uintptr_t stream) {
  const DirectAttentionArgs args{.q = input("q", q),
                                 .k = input("k", k),
                                 .v = input("v", v),
                                 .query_start = input("query_start", query_start),
                                 .key_start = input("key_start", key_start),
                                 .k_scale = input("k_scale", k_scale),
                                 .v_scale = input("v_scale", v_scale),
                                 .q_descale = input("q_descale", q_descale),
                                 .k_descale = input("k_descale", k_descale),
                                 .v_descale = input("v_descale", v_descale),
                                 .sinks = input("sinks", sinks),
                                 .span_ids = input("span_ids", span_ids),
                                 .softmax_scale = softmax_scale,
                                 .out = view_of<TensorView>("out", out),
                                 .lse = lse ? view_of<TensorView>("lse", *lse) : TensorView{}};
  KvDtype stored = is_e4m3(args.k) && is_e4m3(args.v) ? KvDtype::kE4M3 : KvDtype::kBF16;
  if (kv_dtype) stored = kv_dtype_by_name(*kv_dtype);
  const int longest = dim_of("q", args.q, 3);  // no sequence has more query tokens
  AttentionProblem problem{.num_q_heads = dim_of("q", args.q, 2),
                           .kv = {.dtype = stored,
                                  .num_kv_heads = dim_of("k", args.k, 2),
                                  .head_dim_k = dim_of("k", args.k, 1),
                                  .head_dim_v = dim_of("v", args.v, 1),
                                  .page_size = page_size},
                           .max_query_len = std::max(1, max_query_len.value_or(longest)),
                           .window = window,
                           .causal = causal,
                           .softcap = softcap,
                           .sinks = args.sinks.given(),
                           .bidirectional_spans = args.span_ids.given(),
                           .batch_invariant = batch_invariant,
                           .precision = precision_by_name(precision),
                           .kernel = std::nullopt};
  if (kernel) problem.kernel = kernel_by_name(*kernel);
  const nb::gil_scoped_release release;
  attention.run(problem, args, reinterpret_cast<void*>(stream));  // NOLINT(performance-no-int-to-ptr): a handle
}

}  // namespace

void bind_direct_attention(nb::module_& module) {
  nb::class_<DirectAttention>(module, "DirectAttention", "Attention on plain tensors of one device and stream")
      .def(
          "__init__",
          [](DirectAttention* self, int device_type, int device_id) {
            new (self) DirectAttention(device_of("q", device_type, device_id));
          },
          nb::arg("device_type"), nb::arg("device_id"), "Of the device that __dlpack_device__() names")
      .def("run", &run, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::kw_only(), nb::arg("out"),
           nb::arg("lse") = nb::none(), nb::arg("query_start") = nb::none(), nb::arg("key_start") = nb::none(),
           nb::arg("k_scale") = nb::none(), nb::arg("v_scale") = nb::none(), nb::arg("q_descale") = nb::none(),
           nb::arg("k_descale") = nb::none(), nb::arg("v_descale") = nb::none(), nb::arg("sinks") = nb::none(),
           nb::arg("span_ids") = nb::none(), nb::arg("max_query_len") = nb::none(), nb::arg("causal") = true,
           nb::arg("window") = 0, nb::arg("softcap") = 0.0F, nb::arg("softmax_scale"), nb::arg("kv_dtype") = nb::none(),
           nb::arg("page_size") = 64, nb::arg("batch_invariant") = false, nb::arg("precision") = "auto",
           nb::arg("kernel") = nb::none(), nb::arg("stream") = 0, "quaver.attention() says what the arguments mean");
}

}  // namespace quaver::bindings
