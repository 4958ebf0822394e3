// The byte order of a KV page: the ONE definition for CPU, GPU and Python (docs/kv_cache_format.md has pictures).
//
// Page = [kv head][K block | V block], all heads of one layer, page_size = P tokens.
//   E4M3  K block, Dk*P bytes: [P/8][Dk/16][8 tokens][16 bytes]: core matrices of a K-major WGMMA operand without
//         swizzle (PTX ISA, "Strides" of wgmma matrix descriptors): LBO 128, SBO 8*Dk.
//         V block, Dv*P bytes: [P/16][Dv][16 bytes], the 16 tokens of a group in the order
//         0,1,8,9,2,3,10,11,4,5,12,13,6,7,14,15: LBO 16*Dv, SBO 128, and the S accumulator registers of QK^T are the
//         A operand of P*V without a shuffle.
//   BF16  K block [P][Dk], V block [P][Dv], natural order.
// Slot of a token = page id * P + token % P. All offsets are 64-bit.
#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "quaver/kv_cache.h"

namespace quaver::page_format {

/// Byte of token u (0 … 15) inside a 16-byte group of V.
[[nodiscard]] QUAVER_HD constexpr int v_token_position(int u) {
  return 4 * ((u % 8) / 2) + 2 * (u / 8) + u % 2;
}

/// Token (0 … 15) whose value sits at byte `position` of a 16-byte group of V: the inverse of v_token_position().
[[nodiscard]] QUAVER_HD constexpr int v_position_token(int position) {
  return 2 * (position / 4) + 8 * ((position / 2) % 2) + position % 2;
}

[[nodiscard]] QUAVER_HD constexpr int64_t element_bytes(const KvLayout& layout) {
  return layout.dtype == KvDtype::kE4M3 ? 1 : 2;
}

/// Bytes of one kv head's K and V blocks in a page.
[[nodiscard]] QUAVER_HD constexpr int64_t head_bytes(const KvLayout& layout) {
  return static_cast<int64_t>(layout.head_dim_k + layout.head_dim_v) * layout.page_size * element_bytes(layout);
}

/// Bytes of one page: K and V of all kv heads of one layer.
[[nodiscard]] QUAVER_HD constexpr int64_t page_bytes(const KvLayout& layout) {
  return head_bytes(layout) * layout.num_kv_heads;
}

/// Bytes that one token takes in one layer.
[[nodiscard]] QUAVER_HD constexpr int64_t token_bytes(const KvLayout& layout) {
  return page_bytes(layout) / layout.page_size;
}

/// Offset in bytes, from the start of the page, of the K block of `head`.
[[nodiscard]] QUAVER_HD constexpr int64_t k_block_offset(const KvLayout& layout, int head) {
  return head_bytes(layout) * head;
}

/// Offset in bytes, from the start of the page, of the V block of `head`.
[[nodiscard]] QUAVER_HD constexpr int64_t v_block_offset(const KvLayout& layout, int head) {
  return head_bytes(layout) * head + static_cast<int64_t>(layout.head_dim_k) * layout.page_size * element_bytes(layout);
}

/// Offset in bytes, from the start of the page, of K[head][token][dim]; token counts inside the page.
[[nodiscard]] QUAVER_HD constexpr int64_t k_offset(const KvLayout& layout, int head, int token, int dim) {
  const int64_t block = k_block_offset(layout, head);
  if (layout.dtype == KvDtype::kBF16) return block + 2 * (static_cast<int64_t>(token) * layout.head_dim_k + dim);
  return block + static_cast<int64_t>(token / 8) * 8 * layout.head_dim_k + static_cast<int64_t>(dim / 16) * 128 +
         int64_t{16} * (token % 8) + dim % 16;
}

/// Offset in bytes, from the start of the page, of V[head][token][dim]; token counts inside the page.
[[nodiscard]] QUAVER_HD constexpr int64_t v_offset(const KvLayout& layout, int head, int token, int dim) {
  const int64_t block = v_block_offset(layout, head);
  if (layout.dtype == KvDtype::kBF16) return block + 2 * (static_cast<int64_t>(token) * layout.head_dim_v + dim);
  return block + static_cast<int64_t>(token / 16) * 16 * layout.head_dim_v + static_cast<int64_t>(dim) * 16 +
         v_token_position(token % 16);
}

/// Page sizes that every kernel supports.
[[nodiscard]] QUAVER_HD constexpr bool page_size_supported(int page_size) {
  return page_size == 16 || page_size == 32 || page_size == 64 || page_size == 128;
}

}  // namespace quaver::page_format
