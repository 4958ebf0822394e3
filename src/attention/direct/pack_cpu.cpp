#include <cstring>

#include "attention/direct/pack.h"
#include "core/check.h"
#include "kv_cache/page_format.h"

namespace quaver::direct {
namespace {

/// action(pointer to the source's elements), by dtype.
template <class Action>
void with_elements(const Source& source, Action&& action) {
  switch (source.dtype) {
    case DType::kE4M3: return action(static_cast<const uint8_t*>(source.data));
    case DType::kBF16: return action(static_cast<const Bf16*>(source.data));
    case DType::kF32: return action(static_cast<const float*>(source.data));
    default: fail(ErrorKind::kInternal, "source dtype ", dtype_name(source.dtype), ": expected e4m3, bf16 or f32");
  }
}

template <class Element>
void store(KvDtype dtype, Element value, float inverse, uint8_t* to) {
  if (dtype == KvDtype::kE4M3) {
    *to = to_code(value, inverse);
  } else {
    const Bf16 stored = to_bf16_element(value, inverse);
    std::memcpy(to, &stored, sizeof(stored));
  }
}

float inverse_scale(const float* scales, int64_t stride, int head) {
  return scales == nullptr ? 1.0F : 1.0F / scales[head * stride];
}

float to_f32(uint8_t code) {
  return e4m3_decode(code);
}
float to_f32(Bf16 value) {
  return to_float(value);
}
float to_f32(float value) {
  return value;
}

using Offset = int64_t (*)(const KvLayout&, int head, int token, int dim);

/// K or V of one (sequence, kv head).
void pack_head(const KvPack& pack, const Source& source, float inverse, Offset offset_in_page, int64_t sequence,
               int head) {
  const KvLayout& layout = pack.layout;
  const int64_t page_bytes = page_format::page_bytes(layout);
  uint8_t* const pages = pack.pages + first_page(pack.keys, sequence, layout.page_size) * page_bytes;
  with_elements(source, [&](const auto* elements) {
    for (int64_t token = 0; token < pack.keys.length(sequence); ++token) {
      const auto* row = elements + source.offset(pack.keys, sequence, token, head);
      uint8_t* const page = pages + token / layout.page_size * page_bytes;
      const auto slot = static_cast<int>(token % layout.page_size);
      for (int d = 0; d < source.dim; ++d) {
        store(layout.dtype, row[d * source.dim_stride], inverse, page + offset_in_page(layout, head, slot, d));
      }
    }
  });
  if (layout.dtype != KvDtype::kE4M3 || offset_in_page != &page_format::v_offset) return;
  // The GPU writes whole pieces of V, which hold 16 tokens: zeros behind the end.
  for (int64_t token = pack.keys.length(sequence); token % kBlock != 0; ++token) {
    uint8_t* const page = pages + token / layout.page_size * page_bytes;
    for (int d = 0; d < source.dim; ++d)
      page[offset_in_page(layout, head, static_cast<int>(token % layout.page_size), d)] = 0;
  }
}

}  // namespace

Source source_of(const ConstTensorView& view) {
  const bool batched = view.rank == 4;
  const int token = batched ? 1 : 0;
  return {.data = view.data,
          .dtype = view.dtype == DType::kU8 ? DType::kE4M3 : view.dtype,
          .batch_stride = batched ? view.stride(0) : 0,
          .token_stride = view.stride(token),
          .head_stride = view.stride(token + 1),
          .dim_stride = view.stride(token + 2),
          .heads = static_cast<int>(view.dim(token + 1)),
          .dim = static_cast<int>(view.dim(token + 2))};
}

void pack_kv(const KvPack& pack) {
#pragma omp parallel for collapse(2) schedule(dynamic)
  for (int64_t sequence = 0; sequence < pack.keys.count; ++sequence) {
    for (int head = 0; head < pack.layout.num_kv_heads; ++head) {
      pack_head(pack, pack.k, inverse_scale(pack.k_scale, pack.k_scale_stride, head), &page_format::k_offset, sequence,
                head);
      pack_head(pack, pack.v, inverse_scale(pack.v_scale, pack.v_scale_stride, head), &page_format::v_offset, sequence,
                head);
    }
  }
}

void pack_q(const QPack& pack) {
  const Source& q = pack.q;
#pragma omp parallel for schedule(dynamic)
  for (int64_t sequence = 0; sequence < pack.queries.count; ++sequence) {
    with_elements(q, [&](const auto* elements) {
      const int64_t first = pack.queries.start(sequence);
      for (int64_t token = 0; token < pack.queries.length(sequence); ++token) {
        for (int head = 0; head < q.heads; ++head) {
          const auto* row = elements + q.offset(pack.queries, sequence, token, head);
          const int64_t to = ((first + token) * q.heads + head) * q.dim;
          for (int d = 0; d < q.dim; ++d) {
            const auto value = row[d * q.dim_stride];
            if (pack.out_f32 != nullptr) {
              pack.out_f32[to + d] = to_f32(value);
            } else {
              pack.out[to + d] = to_bf16_element(value, 1.0F);
            }
          }
        }
      }
    });
  }
}

}  // namespace quaver::direct
