// One append in memory, and what its pages must hold afterwards.
#pragma once

#include <cstring>
#include <vector>

#include "core/bf16.h"
#include "core/e4m3.h"
#include "kv_cache/page_format.h"
#include "testing/random.h"

namespace quaver::testing {

struct AppendCase {
  AppendCase(const KvLayout& page_layout, std::vector<int64_t> token_slots, int64_t num_pages, uint64_t seed = 1)
      : layout(page_layout), slots(std::move(token_slots)) {
    Random random(seed);
    const auto rows = static_cast<size_t>(std::ssize(slots) * layout.num_kv_heads);
    k.resize(rows * static_cast<size_t>(layout.head_dim_k));
    v.resize(rows * static_cast<size_t>(layout.head_dim_v));
    // BF16 values, so that the same numbers can be given in both input types.
    for (float& x : k) x = to_float(to_bf16(4.0F * random.normal()));
    for (float& x : v) x = to_float(to_bf16(4.0F * random.normal()));
    page_stride = page_format::page_bytes(layout) + 48;  // bytes that no layout owns: a canary
    pages.resize(static_cast<size_t>(num_pages * page_stride));
    for (uint8_t& byte : pages) byte = static_cast<uint8_t>(random.bits());
  }

  [[nodiscard]] int64_t num_tokens() const { return std::ssize(slots); }

  [[nodiscard]] AppendArgs args() {
    AppendArgs args;
    args.layout = layout;
    args.k = ConstTensorView(k.data(), DType::kF32, {num_tokens(), layout.num_kv_heads, layout.head_dim_k});
    args.v = ConstTensorView(v.data(), DType::kF32, {num_tokens(), layout.num_kv_heads, layout.head_dim_v});
    args.slots = ConstTensorView(slots.data(), DType::kI64, {num_tokens()});
    args.pages = TensorView(pages.data(), DType::kU8, {std::ssize(pages) / page_stride, page_stride});
    if (!k_scale.empty()) args.k_scale = ConstTensorView(k_scale.data(), DType::kF32, {std::ssize(k_scale)});
    if (!v_scale.empty()) args.v_scale = ConstTensorView(v_scale.data(), DType::kF32, {std::ssize(v_scale)});
    return args;
  }

  /// Writes one element where the page format puts it, with the scalar codec.
  void put(std::vector<uint8_t>& out, int64_t offset, float value, float inverse_scale) const {
    if (layout.dtype == KvDtype::kE4M3) {
      out.at(static_cast<size_t>(offset)) = e4m3_encode(value * inverse_scale);
      return;
    }
    const Bf16 rounded = to_bf16(value * inverse_scale);
    std::memcpy(&out.at(static_cast<size_t>(offset)), &rounded, 2);
  }

  /// The pages after the append, element by element; everything else as it is now.
  [[nodiscard]] std::vector<uint8_t> expected_pages() const {
    std::vector<uint8_t> out = pages;
    for (int64_t t = 0; t < num_tokens(); ++t) {
      const int64_t slot = slots[static_cast<size_t>(t)];
      if (slot < 0) continue;
      const int64_t page = slot / layout.page_size * page_stride;
      const auto token = static_cast<int>(slot % layout.page_size);
      for (int h = 0; h < layout.num_kv_heads; ++h) {
        const float k_inverse = k_scale.empty() ? 1.0F : 1.0F / k_scale.at(static_cast<size_t>(h));
        const float v_inverse = v_scale.empty() ? 1.0F : 1.0F / v_scale.at(static_cast<size_t>(h));
        const int64_t row = t * layout.num_kv_heads + h;
        for (int d = 0; d < layout.head_dim_k; ++d) {
          put(out, page + page_format::k_offset(layout, h, token, d),
              k.at(static_cast<size_t>(row * layout.head_dim_k + d)), k_inverse);
        }
        for (int d = 0; d < layout.head_dim_v; ++d) {
          put(out, page + page_format::v_offset(layout, h, token, d),
              v.at(static_cast<size_t>(row * layout.head_dim_v + d)), v_inverse);
        }
      }
    }
    return out;
  }

  KvLayout layout{};
  std::vector<int64_t> slots;
  std::vector<float> k, v;
  std::vector<float> k_scale, v_scale;
  int64_t page_stride = 0;
  std::vector<uint8_t> pages;
};

}  // namespace quaver::testing
