#include "core/bf16.h"
#include "core/check.h"
#include "core/e4m3.h"
#include "kv_cache/page_format.h"

namespace quaver {
namespace {

float decode(const KvLayout& layout, const uint8_t* bytes) {
  if (layout.dtype == KvDtype::kE4M3) return e4m3_decode(*bytes);
  return to_float(Bf16{static_cast<uint16_t>(bytes[0] | (bytes[1] << 8))});
}

}  // namespace

NaturalKv read_back(const KvLayout& layout, ConstTensorView pages, std::span<const int32_t> block_table, int64_t length,
                    std::span<const float> k_scale, std::span<const float> v_scale) {
  check_layout(layout);
  check(pages.given() && pages.dtype == DType::kU8 && pages.rank == 2 && pages.stride(1) == 1 &&
            pages.dim(1) >= page_format::page_bytes(layout),
        "pages ", to_string(pages), ": expected u8[num_pages, >= ", page_format::page_bytes(layout), "]");
  const int64_t page_size = layout.page_size;
  check(length >= 0 && length <= std::ssize(block_table) * page_size, "length ", length, ": expected 0 to the ",
        std::ssize(block_table) * page_size, " tokens of the block table");
  const int heads = layout.num_kv_heads;
  for (const auto scale : {k_scale, v_scale}) {
    check(scale.empty() || std::ssize(scale) == heads, "scales ", scale.size(), ": expected none or one of ", heads,
          " kv heads");
  }
  for (int64_t j = 0; j * page_size < length; ++j) {
    const int32_t page = block_table[static_cast<size_t>(j)];
    check(page >= -1 && page < pages.dim(0), "block_table[", j, "] ", page, ": expected -1 to ", pages.dim(0) - 1);
  }

  NaturalKv kv;
  kv.k.resize(static_cast<size_t>(length * heads * layout.head_dim_k));
  kv.v.resize(static_cast<size_t>(length * heads * layout.head_dim_v));
  for (int64_t token = 0; token < length; ++token) {
    const int64_t page = block_table[static_cast<size_t>(token / page_size)];
    if (page < 0) continue;
    const auto* bytes = static_cast<const uint8_t*>(pages.data) + page * pages.stride(0);
    const auto in_page = static_cast<int>(token % page_size);
    for (int head = 0; head < heads; ++head) {
      const auto h = static_cast<size_t>(head);
      const float k_factor = k_scale.empty() ? 1.0F : k_scale[h];
      const float v_factor = v_scale.empty() ? 1.0F : v_scale[h];
      float* k = kv.k.data() + (token * heads + head) * layout.head_dim_k;
      float* v = kv.v.data() + (token * heads + head) * layout.head_dim_v;
      for (int d = 0; d < layout.head_dim_k; ++d) {
        k[d] = decode(layout, bytes + page_format::k_offset(layout, head, in_page, d)) * k_factor;
      }
      for (int d = 0; d < layout.head_dim_v; ++d) {
        v[d] = decode(layout, bytes + page_format::v_offset(layout, head, in_page, d)) * v_factor;
      }
    }
  }
  return kv;
}

}  // namespace quaver
