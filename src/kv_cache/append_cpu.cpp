// append_kv(): checks everything, then writes K and V rows into pages, 16 consecutive slots at a time where it can.
#include <algorithm>
#include <bit>
#include <cstring>

#include "core/bf16.h"
#include "core/check.h"
#include "core/e4m3.h"
#include "kv_cache/append_checks.h"
#include "kv_cache/page_format.h"
#include "kv_cache/scales.h"

namespace quaver {
namespace {

constexpr int kGroup = 16;                    // tokens of a V group in an FP8 page
constexpr int64_t kParallelElements = 65536;  // below, starting threads costs more than the work

/// Tokens with consecutive slots of one 16-token group.
struct Segment {
  int64_t token = 0;
  int64_t slot = 0;
  int count = 0;
};

void check_scale_values(const char* name, const ConstTensorView& scales, int heads) {
  for (int head = 0; scales.given() && head < heads; ++head) {
    const float scale = static_cast<const float*>(scales.data)[head * scales.stride(0)];
    if (!is_scale(scale)) check_scale(concat(name, "[", head, "]"), scale);
  }
}

/// fp32(1/scale) of every head.
std::vector<float> inverse_scales(const ConstTensorView& scales, int heads) {
  std::vector<float> inverse(static_cast<size_t>(heads), 1.0F);
  if (!scales.given()) return inverse;
  for (int head = 0; head < heads; ++head) {
    inverse[static_cast<size_t>(head)] = 1.0F / static_cast<const float*>(scales.data)[head * scales.stride(0)];
  }
  return inverse;
}

/// Refuses a slot that comes twice: O(T) with a hash set of the slots (open addressing, at most half full).
void check_unique(const std::vector<int64_t>& slots) {
  const size_t mask = std::bit_ceil(2 * slots.size() + 2) - 1;
  std::vector<int64_t> set(mask + 1, -1);
  for (const int64_t slot : slots) {
    size_t at = (static_cast<uint64_t>(slot) * 0x9E3779B97F4A7C15U >> 20) & mask;
    while (set[at] >= 0 && set[at] != slot) at = (at + 1) & mask;
    check(set[at] < 0, "slot ", slot, ": expected every slot once");
    set[at] = slot;
  }
}

/// The checked slots, cut into segments.
std::vector<Segment> segments_of(const ConstTensorView& slots, int64_t num_slots) {
  const int64_t num_tokens = slots.dim(0);
  std::vector<Segment> segments;
  std::vector<int64_t> used;
  bool ascending = true;
  for (int64_t token = 0; token < num_tokens; ++token) {
    const int64_t slot = static_cast<const int64_t*>(slots.data)[token * slots.stride(0)];
    check(slot >= -1 && slot < num_slots, "slots[", token, "] ", slot, ": expected -1 (skip) or 0 to ", num_slots - 1);
    if (slot < 0) continue;
    ascending = ascending && (used.empty() || slot > used.back());
    used.push_back(slot);
    const bool joins = !segments.empty() && segments.back().token + segments.back().count == token &&
                       segments.back().slot + segments.back().count == slot && slot % kGroup != 0;
    if (joins) {
      ++segments.back().count;
    } else {
      segments.push_back({.token = token, .slot = slot, .count = 1});
    }
  }
  if (!ascending) check_unique(used);
  return segments;
}

float to_f32(float value) {
  return value;
}
float to_f32(Bf16 value) {
  return to_float(value);
}

/// 16 values * inverse_scale as E4M3 codes, in natural order.
template <class Element>
void quantize16(const Element* values, float inverse_scale, uint8_t (&codes)[kGroup]) {
  for (int d = 0; d < kGroup; ++d) codes[d] = e4m3_quantize(to_f32(values[d]), inverse_scale);
}

/// row * inverse_scale as BF16.
template <class Element>
void round_row(const Element* row, float inverse_scale, int64_t dim, uint8_t* out) {
  for (int64_t d = 0; d < dim; ++d) {
    const Bf16 value = to_bf16(to_f32(row[d]) * inverse_scale);
    std::memcpy(out + 2 * d, &value, sizeof(value));
  }
}

using Bytes16 = uint8_t __attribute__((vector_size(16)));

/// Turns 16 tokens x 16 dims of codes [token][dim] into a piece of a V group, out[dim][v_token_position(token)]: four
/// rounds of interleaving row i with row i + 8.
void transpose_v(const uint8_t (&codes)[kGroup][kGroup], uint8_t* out) {
  Bytes16 rows[kGroup];
  for (int i = 0; i < kGroup; ++i) std::memcpy(&rows[i], codes[page_format::v_position_token(i)], kGroup);
  for (int round = 0; round < 4; ++round) {
    Bytes16 mixed[kGroup];
    for (size_t i = 0; i < kGroup / 2; ++i) {
      const Bytes16 a = rows[i];
      const Bytes16 b = rows[i + kGroup / 2];
      mixed[2 * i] = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      mixed[2 * i + 1] = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    }
    std::copy_n(mixed, kGroup, rows);
  }
  std::memcpy(out, rows, sizeof(rows));
}

/// Writes K and V of one segment for one kv head.
struct Writer {
  const AppendArgs& args;
  std::vector<float> k_inverse;
  std::vector<float> v_inverse;

  void write(const Segment& segment, int head) const {
    const int page_size = args.layout.page_size;
    auto* page = static_cast<uint8_t*>(args.pages.data) + (segment.slot / page_size) * args.pages.stride(0);
    const auto first = static_cast<int>(segment.slot % page_size);
    const float k_scale = k_inverse[static_cast<size_t>(head)];
    const float v_scale = v_inverse[static_cast<size_t>(head)];
    if (args.k.dtype == DType::kF32) {
      write_k<float>(segment, head, first, k_scale, page);
    } else {
      write_k<Bf16>(segment, head, first, k_scale, page);
    }
    if (args.v.dtype == DType::kF32) {
      write_v<float>(segment, head, first, v_scale, page);
    } else {
      write_v<Bf16>(segment, head, first, v_scale, page);
    }
  }

 private:
  template <class Element>
  static const Element* row(const ConstTensorView& rows, int64_t token, int head) {
    return static_cast<const Element*>(rows.data) + token * rows.stride(0) + head * rows.stride(1);
  }

  template <class Element>
  void write_k(const Segment& segment, int head, int first, float scale, uint8_t* page) const {
    const KvLayout& layout = args.layout;
    const int64_t dim = layout.head_dim_k;
    for (int i = 0; i < segment.count; ++i) {
      const auto* source = row<Element>(args.k, segment.token + i, head);
      uint8_t* out = page + page_format::k_offset(layout, head, first + i, 0);
      if (layout.dtype == KvDtype::kBF16) {
        round_row(source, scale, dim, out);
      } else {
        for (int64_t d = 0; d < dim; d += kGroup) {
          uint8_t codes[kGroup];
          quantize16(source + d, scale, codes);
          std::memcpy(out + 8 * d, codes, kGroup);
        }
      }
    }
  }

  template <class Element>
  void write_v(const Segment& segment, int head, int first, float scale, uint8_t* page) const {
    const KvLayout& layout = args.layout;
    const int64_t dim = layout.head_dim_v;
    if (layout.dtype == KvDtype::kBF16) {
      for (int i = 0; i < segment.count; ++i) {
        round_row(row<Element>(args.v, segment.token + i, head), scale, dim,
                  page + page_format::v_offset(layout, head, first + i, 0));
      }
      return;
    }
    const int first_in_group = first % kGroup;
    uint8_t* out = page + page_format::v_offset(layout, head, first - first_in_group, 0);
    for (int64_t d = 0; d < dim; d += kGroup) {
      uint8_t codes[kGroup][kGroup];
      for (int i = 0; i < segment.count; ++i) {
        quantize16(row<Element>(args.v, segment.token + i, head) + d, scale, codes[i]);
      }
      if (segment.count == kGroup) {
        transpose_v(codes, out + kGroup * d);
        continue;
      }
      for (int i = 0; i < segment.count; ++i) {
        uint8_t* column = out + kGroup * d + page_format::v_token_position(first_in_group + i);
        for (int64_t c = 0; c < kGroup; ++c) column[kGroup * c] = codes[i][c];
      }
    }
  }
};

}  // namespace

void append_kv(const AppendArgs& args) {
  check_append_tensors(args, Device::Kind::kCpu);
  const KvLayout& layout = args.layout;
  check_scale_values("k_scale", args.k_scale, layout.num_kv_heads);
  check_scale_values("v_scale", args.v_scale, layout.num_kv_heads);
  const std::vector<Segment> segments = segments_of(args.slots, args.pages.dim(0) * layout.page_size);
  const Writer writer{.args = args,
                      .k_inverse = inverse_scales(args.k_scale, layout.num_kv_heads),
                      .v_inverse = inverse_scales(args.v_scale, layout.num_kv_heads)};
  const int64_t num_segments = std::ssize(segments);
  const int64_t num_elements =
      args.slots.dim(0) * layout.num_kv_heads * (int64_t{layout.head_dim_k} + layout.head_dim_v);
#pragma omp parallel for collapse(2) schedule(static) if (num_elements > kParallelElements)
  for (int64_t i = 0; i < num_segments; ++i) {
    for (int head = 0; head < layout.num_kv_heads; ++head) writer.write(segments[static_cast<size_t>(i)], head);
  }
}

}  // namespace quaver
