#include "kv_cache/append_checks.h"

#include <bit>

#include "core/check_view.h"
#include "kv_cache/page_format.h"

namespace quaver {
namespace {

const char* kind_name(Device::Kind kind) {
  return kind == Device::Kind::kCpu ? "cpu" : "cuda";
}

void check_alignment(const char* name, const ConstTensorView& view, int64_t bytes) {
  check(std::bit_cast<uintptr_t>(view.data) % static_cast<uintptr_t>(bytes) == 0, name,
        " address: expected a multiple of ", bytes, " bytes");
}

void check_rows(const char* name, const ConstTensorView& rows, const KvLayout& layout, int64_t num_tokens, int head_dim,
                Device device) {
  const bool cpu = device.kind == Device::Kind::kCpu;
  check_view(rows.dtype == DType::kBF16 || (cpu && rows.dtype == DType::kF32), name, rows,
             cpu ? "f32 or bf16 rows" : "bf16 rows");
  check_view(
      rows.rank == 3 && rows.dim(0) == num_tokens && rows.dim(1) == layout.num_kv_heads && rows.dim(2) == head_dim,
      name, rows, "[", num_tokens, ", ", layout.num_kv_heads, ", ", head_dim, "]");
  if (num_tokens == 0) return;
  check_view(rows.given() && rows.device == device, name, rows, "a tensor on the ", to_string(device));
  check(rows.stride(2) == 1 || head_dim == 1, name, " last stride ", rows.stride(2), ": expected 1");
  const int64_t element = dtype_bytes(rows.dtype);
  check_alignment(name, rows, element);
  if (cpu || layout.dtype == KvDtype::kBF16) return;
  check_alignment(name, rows, 16);
  for (const int axis : {0, 1}) {
    check(rows.dim(axis) <= 1 || rows.stride(axis) * element % 16 == 0, name, " stride ", rows.stride(axis),
          " of dimension ", axis, ": expected a multiple of ", 16 / element);
  }
}

void check_scales(const char* name, const ConstTensorView& scales, int heads, Device device) {
  if (!scales.given()) return;
  check_view(scales.dtype == DType::kF32 && scales.rank == 1 && scales.dim(0) == heads && scales.device == device, name,
             scales, "f32[", heads, "] on ", to_string(device));
  check_alignment(name, scales, 4);
}

}  // namespace

void check_append_tensors(const AppendArgs& args, Device::Kind kind) {
  const KvLayout& layout = args.layout;
  check_layout(layout);
  check_view(args.slots.dtype == DType::kI64 && args.slots.rank == 1, "slots", args.slots, "i64[T]");
  const int64_t num_tokens = args.slots.dim(0);
  const Device device = args.pages.device;
  const int64_t page_bytes = page_format::page_bytes(layout);
  check_view(args.pages.given() && args.pages.dtype == DType::kU8 && args.pages.rank == 2 &&
                 args.pages.stride(1) == 1 && args.pages.dim(1) >= page_bytes && device.kind == kind,
             "pages", args.pages, "u8[num_pages, >= ", page_bytes, "] on ", kind_name(kind));
  check_view(num_tokens == 0 || (args.slots.given() && args.slots.device == device), "slots", args.slots,
             "a tensor on the ", to_string(device));
  check_rows("k", args.k, layout, num_tokens, layout.head_dim_k, device);
  check_rows("v", args.v, layout, num_tokens, layout.head_dim_v, device);
  check_scales("k_scale", args.k_scale, layout.num_kv_heads, device);
  check_scales("v_scale", args.v_scale, layout.num_kv_heads, device);
  if (kind == Device::Kind::kCpu) return;
  check_alignment("slots", args.slots, 8);
  check_alignment("pages", args.pages, 16);
  check(args.pages.dim(0) <= 1 || args.pages.stride(0) % 16 == 0, "pages stride ", args.pages.stride(0),
        ": expected a multiple of 16 bytes");
}

}  // namespace quaver
