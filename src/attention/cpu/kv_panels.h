// Stored K and V, 16 tokens at a time, as float panels for the block products: K as [Dk][16 keys], V as
// [ceil(Dv/16)][rows][16 columns].
#pragma once

#include <cstddef>
#include <cstdint>

#include "quaver/kv_cache.h"

namespace quaver {

/// Tokens that share one 16-byte group of V, and keys of one panel.
inline constexpr int kPanel = 16;

/// panel[d * 16 + j] = K[head][token + j][d]; token counts inside the page and is a multiple of 16.
void load_k_panel(const KvLayout& layout, const std::byte* page, int head, int token, float* panel);

/// Rows row … row + 15 of every column panel of V: panels[(d / 16) * rows * 16 + (row + j) * 16 + d % 16] =
/// V[head][token + j][d] for valid_first <= j < valid_last and 0 elsewhere: stored bytes that no row sees may be NaN.
struct VRows {
  int token = 0;  ///< inside the page, a multiple of 16
  int valid_first = 0;
  int valid_last = kPanel;
  int row = 0;
  int rows = 0;
};
void load_v_rows(const KvLayout& layout, const std::byte* page, int head, const VRows& where, float* panels);

}  // namespace quaver
