#include "attention/cpu/kv_panels.h"

#include <algorithm>
#include <cstring>

#include "core/bf16.h"
#include "core/simd.h"
#include "kv_cache/page_format.h"

namespace quaver {
namespace {

float bf16_at(const std::byte* from) {
  Bf16 value;
  std::memcpy(&value, from, sizeof value);
  return to_float(value);
}

void store_e4m3(simd::U8x16 codes, float* to) {
  simd::F32x8 low{};
  simd::F32x8 high{};
  simd::decode_e4m3(codes, low, high);
  simd::store(to, low);
  simd::store(to + 8, high);
}

// Two core matrices of 8 tokens x 16 dims become 16 dims x 16 tokens.
void load_k_e4m3(const KvLayout& layout, const std::byte* page, int head, int token, float* panel) {
  const std::byte* upper = page + page_format::k_offset(layout, head, token, 0);
  const std::byte* lower = page + page_format::k_offset(layout, head, token + 8, 0);
  for (int64_t d = 0; d < layout.head_dim_k; d += 16) {
    simd::U8x16 rows[16];
#pragma GCC unroll 8
    for (int64_t j = 0; j < 8; ++j) {
      rows[j] = simd::load<simd::U8x16>(upper + d * 8 + j * 16);
      rows[j + 8] = simd::load<simd::U8x16>(lower + d * 8 + j * 16);
    }
    simd::transpose(rows);
#pragma GCC unroll 16
    for (int64_t i = 0; i < 16; ++i) store_e4m3(rows[i], panel + (d + i) * kPanel);
  }
}

void load_k_bf16(const KvLayout& layout, const std::byte* page, int head, int token, float* panel) {
  const std::byte* rows = page + page_format::k_offset(layout, head, token, 0);
  const int64_t stride = int64_t{2} * layout.head_dim_k;
  const int64_t vector_dims = int64_t{layout.head_dim_k} / 8 * 8;
  for (int64_t half = 0; half < kPanel; half += 8) {
    for (int64_t d = 0; d < vector_dims; d += 8) {
      simd::U16x8 block[8];
#pragma GCC unroll 8
      for (int64_t j = 0; j < 8; ++j) block[j] = simd::load<simd::U16x8>(rows + (half + j) * stride + d * 2);
      simd::transpose(block);
#pragma GCC unroll 8
      for (int64_t i = 0; i < 8; ++i) simd::store(panel + (d + i) * kPanel + half, simd::widen_bf16(block[i]));
    }
  }
  for (int64_t d = vector_dims; d < layout.head_dim_k; ++d) {
    for (int64_t j = 0; j < kPanel; ++j) panel[d * kPanel + j] = bf16_at(rows + j * stride + d * 2);
  }
}

// 16 dims x 16 tokens (in page order) become rows of 16 dims, one per token.
void load_v_e4m3(const KvLayout& layout, const std::byte* page, int head, const VRows& where, float* panels) {
  const std::byte* group = page + page_format::v_offset(layout, head, where.token, 0);
  for (int64_t d = 0; d < layout.head_dim_v; d += 16) {
    simd::U8x16 block[16];
#pragma GCC unroll 16
    for (int64_t i = 0; i < 16; ++i) block[i] = simd::load<simd::U8x16>(group + (d + i) * 16);
    simd::transpose(block);
    float* panel = panels + d * where.rows + int64_t{where.row} * kPanel;
#pragma GCC unroll 16
    for (int64_t i = 0; i < 16; ++i)
      store_e4m3(block[i], panel + int64_t{page_format::v_position_token(static_cast<int>(i))} * kPanel);
  }
}

void load_v_bf16(const KvLayout& layout, const std::byte* page, int head, const VRows& where, float* panels) {
  const int64_t dims = layout.head_dim_v;
  for (int64_t j = 0; j < kPanel; ++j) {
    const std::byte* row = page + page_format::v_offset(layout, head, where.token + static_cast<int>(j), 0);
    for (int64_t d = 0; d < dims; d += kPanel) {
      float* to = panels + d * where.rows + (where.row + j) * kPanel;
      if (d + kPanel <= dims) {
        simd::store(to, simd::widen_bf16(simd::load<simd::U16x8>(row + d * 2)));
        simd::store(to + 8, simd::widen_bf16(simd::load<simd::U16x8>(row + d * 2 + 16)));
      } else {
        for (int64_t i = 0; i < kPanel; ++i) to[i] = d + i < dims ? bf16_at(row + (d + i) * 2) : 0.0F;
      }
    }
  }
}

}  // namespace

void load_k_panel(const KvLayout& layout, const std::byte* page, int head, int token, float* panel) {
  layout.dtype == KvDtype::kE4M3 ? load_k_e4m3(layout, page, head, token, panel)
                                 : load_k_bf16(layout, page, head, token, panel);
}

void load_v_rows(const KvLayout& layout, const std::byte* page, int head, const VRows& where, float* panels) {
  layout.dtype == KvDtype::kE4M3 ? load_v_e4m3(layout, page, head, where, panels)
                                 : load_v_bf16(layout, page, head, where, panels);
  if (where.valid_first == 0 && where.valid_last == kPanel) return;
  for (int64_t d = 0; d < layout.head_dim_v; d += kPanel) {
    for (int64_t j = 0; j < kPanel; ++j) {
      if (where.valid_first <= j && j < where.valid_last) continue;
      std::fill_n(panels + d * where.rows + (where.row + j) * kPanel, kPanel, 0.0F);
    }
  }
}

}  // namespace quaver
