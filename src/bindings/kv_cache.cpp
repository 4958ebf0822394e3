// The page format: sizes, and K and V rows to and from page bytes. Arrays cross as DLPack.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <memory>
#include <numeric>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/names.h"
#include "core/check.h"
#include "kv_cache/page_format.h"
#include "quaver/kv_cache.h"

namespace nb = nanobind;

namespace quaver::bindings {
namespace {

using Rows = nb::ndarray<const float, nb::ndim<3>, nb::device::cpu>;  // [S, Hkv, D], any strides
using Scales = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Pages = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

ConstTensorView view_of(const Rows& rows) {
  ConstTensorView view{
      rows.data(),
      DType::kF32,
      {static_cast<int64_t>(rows.shape(0)), static_cast<int64_t>(rows.shape(1)), static_cast<int64_t>(rows.shape(2))}};
  for (size_t axis = 0; axis < 3; ++axis) view.strides.at(axis) = rows.stride(axis);
  return view;
}

ConstTensorView view_of(const std::optional<Scales>& scales) {
  if (!scales) return {};
  return {scales->data(), DType::kF32, {static_cast<int64_t>(scales->shape(0))}};
}

/// A numpy array that owns `values`.
template <class Value>
nb::ndarray<nb::numpy, Value> to_numpy(std::vector<Value> values, std::initializer_list<size_t> shape) {
  auto owned = std::make_unique<std::vector<Value>>(std::move(values));
  Value* data = owned->data();
  const nb::capsule owner(owned.release(),
                          [](void* pointer) noexcept { delete static_cast<std::vector<Value>*>(pointer); });
  return {data, shape, owner};
}

nb::ndarray<nb::numpy, uint8_t> pack(const KvLayout& layout, const Rows& k, const Rows& v,
                                     const std::optional<Scales>& k_scale, const std::optional<Scales>& v_scale) {
  check_layout(layout);
  const auto length = static_cast<int64_t>(k.shape(0));
  const int64_t num_pages = (length + layout.page_size - 1) / layout.page_size;
  const int64_t bytes = page_format::page_bytes(layout);
  std::vector<uint8_t> pages(static_cast<size_t>(num_pages * bytes));
  {
    const nb::gil_scoped_release release;
    std::vector<int64_t> slots(static_cast<size_t>(length));
    std::iota(slots.begin(), slots.end(), int64_t{0});
    append_kv({.layout = layout,
               .k = view_of(k),
               .v = view_of(v),
               .slots = {slots.data(), DType::kI64, {length}},
               .k_scale = view_of(k_scale),
               .v_scale = view_of(v_scale),
               .pages = {pages.data(), DType::kU8, {num_pages, bytes}}});
  }
  return to_numpy(std::move(pages), {static_cast<size_t>(num_pages), static_cast<size_t>(bytes)});
}

nb::tuple unpack(const KvLayout& layout, const Pages& pages, int64_t length, const std::optional<Scales>& k_scale,
                 const std::optional<Scales>& v_scale) {
  check_layout(layout);
  check(length >= 0, "length ", length, ": expected >= 0");
  NaturalKv natural;
  {
    const nb::gil_scoped_release release;
    std::vector<int32_t> table(pages.shape(0));
    std::iota(table.begin(), table.end(), 0);
    const auto span_of = [](const std::optional<Scales>& scales) {
      return scales ? std::span<const float>(scales->data(), scales->shape(0)) : std::span<const float>();
    };
    natural = read_back(
        layout,
        {pages.data(), DType::kU8, {static_cast<int64_t>(pages.shape(0)), static_cast<int64_t>(pages.shape(1))}}, table,
        length, span_of(k_scale), span_of(v_scale));
  }
  const auto tokens = static_cast<size_t>(length);
  const auto heads = static_cast<size_t>(layout.num_kv_heads);
  return nb::make_tuple(to_numpy(std::move(natural.k), {tokens, heads, static_cast<size_t>(layout.head_dim_k)}),
                        to_numpy(std::move(natural.v), {tokens, heads, static_cast<size_t>(layout.head_dim_v)}));
}

}  // namespace

void bind_kv_cache(nb::module_& module) {
  nb::class_<KvLayout>(module, "KvLayout", "Shape of the pages of one layer kind")
      .def(
          "__init__",
          [](KvLayout* self, std::string_view dtype, int num_kv_heads, int head_dim_k, std::optional<int> head_dim_v,
             int page_size) {
            new (self) KvLayout{.dtype = kv_dtype_by_name(dtype),
                                .num_kv_heads = num_kv_heads,
                                .head_dim_k = head_dim_k,
                                .head_dim_v = head_dim_v.value_or(head_dim_k),
                                .page_size = page_size};
          },
          nb::kw_only(), nb::arg("dtype"), nb::arg("num_kv_heads"), nb::arg("head_dim_k"),
          nb::arg("head_dim_v") = nb::none(), nb::arg("page_size") = 64)
      .def_prop_ro("dtype", [](const KvLayout& layout) { return std::string(kv_dtype_name(layout.dtype)); })
      .def_ro("num_kv_heads", &KvLayout::num_kv_heads)
      .def_ro("head_dim_k", &KvLayout::head_dim_k)
      .def_ro("head_dim_v", &KvLayout::head_dim_v)
      .def_ro("page_size", &KvLayout::page_size)
      .def_prop_ro("page_bytes",
                   [](const KvLayout& layout) {
                     check_layout(layout);
                     return page_format::page_bytes(layout);
                   })
      .def("k_offset", &page_format::k_offset, nb::arg("head"), nb::arg("token"), nb::arg("dim"),
           "Byte of K[head][token][dim] in a page")
      .def("v_offset", &page_format::v_offset, nb::arg("head"), nb::arg("token"), nb::arg("dim"),
           "Byte of V[head][token][dim] in a page");
  module.def("pack_pages", &pack, nb::arg("layout"), nb::arg("k"), nb::arg("v"), nb::arg("k_scale") = nb::none(),
             nb::arg("v_scale") = nb::none(), "K and V rows [S, Hkv, D] f32 → u8[ceil(S/P), page_bytes]");
  module.def("unpack_pages", &unpack, nb::arg("layout"), nb::arg("pages"), nb::arg("length"),
             nb::arg("k_scale") = nb::none(), nb::arg("v_scale") = nb::none(),
             "The inverse, dequantised: (K [length, Hkv, Dk], V [length, Hkv, Dv])");
}

}  // namespace quaver::bindings
