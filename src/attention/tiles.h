// Masks, KV tiles and split cuts as arithmetic: constexpr, host and device, so that the kernels, their CPU emulation
// and the CPU path walk the same keys in the same pieces. Unit-tested against brute force (tiles_test.cpp).
//
// Query token i of a sequence (q_len tokens, kv_len keys) sits at position kv_len - q_len + i (bottom-right aligned).
// A kernel's query row is a (token, head of the GQA group) pair: row = token * group + head.
#pragma once

#include <array>
#include <cstdint>

#include "core/host_device.h"

namespace quaver::tiles {

// ---- sizes ---------------------------------------------------------------------------------------------------------

enum class KernelFamily : uint8_t { kDecode, kPrefill };

/// Head dims (K and V alike) that the FP8 kernels are written for.
inline constexpr std::array<int, 6> kKernelHeadDims{64, 96, 128, 192, 256, 512};

/// Query rows (group * q_len) a kv head that the decode kernel takes: 32 hi and 32 lo rows fill one M = 64 WGMMA.
inline constexpr int kMaxDecodeRows = 32;

/// Split boundary in tokens in batch-invariant mode; a multiple of every tile.
inline constexpr int kFixedSplitTokens = 4096;

/// Tokens of one KV tile, 0 where the family has no kernel for the head dim.
/// Decode: a K and a V tile of two CTAs an SM fit the ring (d >= 192: 64 tokens). Prefill: 128 measured 10 % faster
/// than 64 at d = 256; two accumulators of 256 output columns leave room for 64 at d = 512.
[[nodiscard]] QUAVER_HD constexpr int kv_tile(KernelFamily family, int head_dim) {
  switch (head_dim) {
    case 64:
    case 96:
    case 128: return 128;
    case 192:
    case 256: return family == KernelFamily::kDecode ? 64 : 128;
    case 512: return 64;
    default: return 0;
  }
}

// ---- rows ----------------------------------------------------------------------------------------------------------

[[nodiscard]] QUAVER_HD constexpr int row_token(int row, int group) {
  return row / group;
}

/// Head inside the GQA group; the query head is kv_head * group + this.
[[nodiscard]] QUAVER_HD constexpr int row_head(int row, int group) {
  return row % group;
}

[[nodiscard]] QUAVER_HD constexpr int row_index(int token, int head, int group) {
  return token * group + head;
}

// ---- masks ---------------------------------------------------------------------------------------------------------

struct Mask {
  bool causal = true;
  int window = 0;  ///< keys, the token itself included; 0: none
};

/// Keys [first, last); empty ranges are {0, 0}.
struct KeyRange {
  int64_t first = 0;
  int64_t last = 0;
  [[nodiscard]] QUAVER_HD constexpr bool empty() const { return first >= last; }
  friend constexpr bool operator==(const KeyRange&, const KeyRange&) = default;
};

struct VisibleKeys {
  KeyRange any;
  KeyRange all;
};

/// Of query tokens at positions low … high: keys from the window of each on, up to last_of_low … last_of_high, which
/// never fall.
[[nodiscard]] QUAVER_HD constexpr VisibleKeys clamped(Mask mask, int64_t kv_len, int64_t low, int64_t high,
                                                      int64_t last_of_low, int64_t last_of_high) {
  const auto first_key = [&](int64_t position) {
    const int64_t key = mask.window > 0 ? position - mask.window + 1 : 0;
    return key > 0 ? key : 0;
  };
  const auto last_key = [&](int64_t key) { return key < 0 ? 0 : (key < kv_len ? key : kv_len); };
  VisibleKeys keys{.any = {first_key(low), last_key(last_of_high)}, .all = {first_key(high), last_key(last_of_low)}};
  if (keys.any.empty()) keys.any = {};
  if (keys.all.empty()) keys.all = {};
  return keys;
}

/// Keys that some token of [token_first, token_last) sees, and the keys that all of them see.
/// Causal: position p sees max(0, p - W + 1) … p. Not causal: the window is symmetric, p - W + 1 … p + W - 1.
[[nodiscard]] QUAVER_HD constexpr VisibleKeys visible_keys(Mask mask, int64_t kv_len, int64_t q_len,
                                                           int64_t token_first, int64_t token_last) {
  if (token_first >= token_last || kv_len <= 0) return {};
  const int64_t low = kv_len - q_len + token_first;  // lowest and highest position of the block
  const int64_t high = kv_len - q_len + token_last - 1;
  const auto last_key = [&](int64_t position) {
    if (mask.causal) return position + 1;
    return mask.window > 0 ? position + mask.window : kv_len;
  };
  return clamped(mask, kv_len, low, high, last_key(low), last_key(high));
}

/// Keys that one token sees.
[[nodiscard]] QUAVER_HD constexpr KeyRange visible_keys(Mask mask, int64_t kv_len, int64_t q_len, int64_t token) {
  return visible_keys(mask, kv_len, q_len, token, token + 1).any;
}

/// An image span is a run of query tokens with the same id >= 0; -1 is text. Is `next`, the token after one with `id`,
/// of the same span?
[[nodiscard]] QUAVER_HD constexpr bool span_goes_on(int32_t id, int32_t next) {
  return id >= 0 && next == id;
}

/// visible_keys() of a block under a causal mask with spans. `first_end`, `last_end`: one past the last token of the
/// span that the block's first and last token are in (of text: one past the token).
[[nodiscard]] QUAVER_HD constexpr VisibleKeys visible_keys_in_spans(Mask mask, int64_t kv_len, int64_t q_len,
                                                                    int64_t token_first, int64_t token_last,
                                                                    int64_t first_end, int64_t last_end) {
  if (token_first >= token_last || kv_len <= 0) return {};
  const int64_t begin = kv_len - q_len;
  return clamped(mask, kv_len, begin + token_first, begin + token_last - 1, begin + first_end, begin + last_end);
}

/// Keys that one token sees under a causal mask whose last query token of the same image span is span_end - 1
/// (token + 1 for text): later tokens of the span too, so still one range. The window bounds the past only.
[[nodiscard]] QUAVER_HD constexpr KeyRange visible_keys_in_span(Mask mask, int64_t kv_len, int64_t q_len, int64_t token,
                                                                int64_t span_end) {
  return visible_keys_in_spans(mask, kv_len, q_len, token, token + 1, span_end, span_end).any;
}

// ---- tiles ---------------------------------------------------------------------------------------------------------

/// Tiles of a block of rows; tile t holds the keys [t * tile, (t + 1) * tile).
/// [first, full_first): masked, left edge; [full_first, full_last): every key visible to every row, no mask needed;
/// [full_last, last): masked, right edge. first <= full_first <= full_last <= last; with no full tile all are "left".
struct TileRange {
  int64_t first = 0;
  int64_t full_first = 0;
  int64_t full_last = 0;
  int64_t last = 0;
  [[nodiscard]] QUAVER_HD constexpr int64_t count() const { return last - first; }
  [[nodiscard]] QUAVER_HD constexpr int64_t masked_left() const { return full_first - first; }
  [[nodiscard]] QUAVER_HD constexpr int64_t masked_right() const { return last - full_last; }
  friend constexpr bool operator==(const TileRange&, const TileRange&) = default;
};

[[nodiscard]] QUAVER_HD constexpr TileRange tile_range(const VisibleKeys& keys, int tile) {
  if (keys.any.empty()) return {};
  TileRange range{.first = keys.any.first / tile, .last = (keys.any.last + tile - 1) / tile};
  range.full_first = (keys.all.first + tile - 1) / tile;
  range.full_last = keys.all.last / tile;
  if (keys.all.empty() || range.full_first >= range.full_last) range.full_first = range.full_last = range.last;
  return range;
}

// ---- splits --------------------------------------------------------------------------------------------------------

/// Number of fixed splits that tiles [first, last) touch; boundaries are absolute multiples of kFixedSplitTokens, so a
/// split never depends on the batch.
[[nodiscard]] QUAVER_HD constexpr int64_t num_fixed_splits(int64_t first_tile, int64_t last_tile, int tile) {
  if (first_tile >= last_tile) return 0;
  const int64_t tiles = kFixedSplitTokens / tile;
  return (last_tile - 1) / tiles - first_tile / tiles + 1;
}

struct TileSpan {
  int64_t first = 0;
  int64_t last = 0;
  friend constexpr bool operator==(const TileSpan&, const TileSpan&) = default;
};

/// Tiles of fixed split `index` (0 … num_fixed_splits - 1).
[[nodiscard]] QUAVER_HD constexpr TileSpan fixed_split(int64_t first_tile, int64_t last_tile, int tile, int64_t index) {
  const int64_t tiles = kFixedSplitTokens / tile;
  const int64_t begin = (first_tile / tiles + index) * tiles;
  const int64_t end = begin + tiles;
  return {.first = begin > first_tile ? begin : first_tile, .last = end < last_tile ? end : last_tile};
}

/// Even cut of a work list: worker w of `workers` owns the units [even_cut(w), even_cut(w + 1)); sizes differ by at
/// most one.
[[nodiscard]] QUAVER_HD constexpr int64_t even_cut(int64_t units, int64_t workers, int64_t worker) {
  return units * worker / workers;
}

/// The worker that owns `unit`: the inverse of even_cut().
[[nodiscard]] QUAVER_HD constexpr int64_t even_cut_owner(int64_t units, int64_t workers, int64_t unit) {
  return ((unit + 1) * workers - 1) / units;
}

}  // namespace quaver::tiles
