// The kernels of a call without a cache: the tables of its scratch pages, K and V into pages, Q into dense BF16 rows.
// They write the bytes that pack_cpu.cpp writes.
#pragma once

#include "attention/direct/device_pack.h"
#include "kv_cache/append_write.cuh"
#include "kv_cache/page_format.h"

namespace quaver::direct {

inline constexpr int kThreads = 128;

/// One CTA a sequence.
__global__ void __launch_bounds__(kThreads) quaver_direct_tables(const TablesPack p) {
  const auto b = int64_t{blockIdx.x};
  const int64_t length = p.keys.length(b);
  const int64_t first = first_page(p.keys, b, p.page_size);
  for (int64_t page = threadIdx.x; page < p.table_width; page += kThreads) {
    p.block_table[b * p.table_width + page] = page * p.page_size < length ? static_cast<int32_t>(first + page) : -1;
  }
  if (threadIdx.x != 0) return;
  p.seq_lens[b] = static_cast<int32_t>(length);
  if (p.query_start == nullptr) return;
  p.query_start[b] = static_cast<int32_t>(p.queries.start(b));
  if (b + 1 == p.queries.count) p.query_start[b + 1] = static_cast<int32_t>(p.queries.start(b + 1));
}

__device__ __forceinline__ uint8_t device_code(uint8_t code, float /*inverse*/) {
  return code;
}
__device__ __forceinline__ uint8_t device_code(Bf16 value, float inverse) {
  return append::code(to_float(value), inverse);
}
__device__ __forceinline__ uint8_t device_code(float value, float inverse) {
  return append::code(value, inverse);
}

/// 16 neighbouring elements of a row, read at once.
template <class Element>
struct alignas(16) Piece {
  Element elements[kBlock];
};

/// What a CTA packs: up to 16 tokens of one kv head.
template <class Element>
struct Block {
  const Element* rows = nullptr;  ///< of the first token
  int64_t token_stride = 0;
  int64_t dim_stride = 0;
  int dim = 0;
  int count = 0;  ///< tokens
  float inverse = 1.0F;
  [[nodiscard]] __device__ Element at(int token, int d) const { return rows[token * token_stride + d * dim_stride]; }
  [[nodiscard]] __device__ bool has_pieces() const {
    constexpr int64_t kSize = sizeof(Element);
    return dim_stride == 1 && reinterpret_cast<uintptr_t>(rows) % 16 == 0 && token_stride * kSize % 16 == 0;
  }
};

/// K of an FP8 page: neighbouring threads have neighbouring tokens, whose 16-byte pieces lie next to each other.
template <class Element>
__device__ void write_k(const Block<Element>& block, const KvLayout& layout, uint8_t* page, int head, int slot) {
  const bool pieces = block.has_pieces();
  for (auto piece = static_cast<int>(threadIdx.x); piece < block.dim; piece += kThreads) {  // dim / 16 pieces a token
    const int token = piece % kBlock;
    const int d = piece / kBlock * kBlock;
    if (token >= block.count) continue;
    auto* const to = reinterpret_cast<uint4*>(page + page_format::k_offset(layout, head, slot + token, d));
    if (pieces) {
      const auto piece_of_row = *reinterpret_cast<const Piece<Element>*>(block.rows + token * block.token_stride + d);
      *to = append::sixteen_codes([&](int i) { return device_code(piece_of_row.elements[i], block.inverse); });
    } else {
      *to = append::sixteen_codes([&](int i) { return device_code(block.at(token, d + i), block.inverse); });
    }
  }
}

/// V of an FP8 page: a thread has a column. Tokens behind the end of the sequence become zeros.
template <class Element>
__device__ void write_v(const Block<Element>& block, const KvLayout& layout, uint8_t* page, int head, int slot) {
  for (auto d = static_cast<int>(threadIdx.x); d < block.dim; d += kThreads) {
    *reinterpret_cast<uint4*>(page + page_format::v_offset(layout, head, slot, d)) = append::sixteen_codes([&](int i) {
      const int token = page_format::v_position_token(i);
      return token < block.count ? device_code(block.at(token, d), block.inverse) : uint8_t{0};
    });
  }
}

/// K or V of a BF16 page, whose rows are dense.
template <class Element>
__device__ void write_bf16(const Block<Element>& block, uint8_t* first_row) {
  auto* const out = reinterpret_cast<Bf16*>(first_row);
  for (auto i = static_cast<int>(threadIdx.x); i < block.count * block.dim; i += kThreads) {
    out[i] = to_bf16_element(block.at(i / block.dim, i % block.dim), block.inverse);
  }
}

/// The CTA's share of K (kKeys) or V.
template <bool kKeys, class Element>
__device__ void pack_block(const KvPack& p, const Source& source, float inverse, int64_t sequence, int64_t first,
                           int64_t page_id, int head) {
  const KvLayout& layout = p.layout;
  const int64_t left = p.keys.length(sequence) - first;
  const Block<Element> block{
      .rows = static_cast<const Element*>(source.data) + source.offset(p.keys, sequence, first, head),
      .token_stride = source.token_stride,
      .dim_stride = source.dim_stride,
      .dim = source.dim,
      .count = left < kBlock ? static_cast<int>(left) : kBlock,
      .inverse = inverse};
  uint8_t* const page = p.pages + page_id * page_format::page_bytes(layout);
  const auto slot = static_cast<int>(first % layout.page_size);
  if (layout.dtype == KvDtype::kBF16) {
    write_bf16(block, page + (kKeys ? page_format::k_offset(layout, head, slot, 0)
                                    : page_format::v_offset(layout, head, slot, 0)));
  } else if (kKeys) {
    write_k(block, layout, page, head, slot);
  } else {
    write_v(block, layout, page, head, slot);
  }
}

/// One CTA a (16 tokens of a page, kv head, K or V).
template <class K, class V>
__global__ void __launch_bounds__(kThreads) quaver_direct_pack_kv(const KvPack p) {
  const int page_size = p.layout.page_size;
  const int64_t page = int64_t{blockIdx.x} * kBlock / page_size;
  const int64_t sequence = sequence_of_page(p.keys, page, page_size);
  const int64_t in_sequence = page - first_page(p.keys, sequence, page_size);
  const int64_t first = in_sequence * page_size + int64_t{blockIdx.x} * kBlock % page_size;
  if (in_sequence < 0 || first >= p.keys.length(sequence)) return;
  const auto head = static_cast<int>(blockIdx.y);
  if (blockIdx.z == 0) {
    pack_block<true, K>(p, p.k, append::inverse_scale(p.k_scale, p.k_scale_stride, head), sequence, first, page, head);
  } else {
    pack_block<false, V>(p, p.v, append::inverse_scale(p.v_scale, p.v_scale_stride, head), sequence, first, page, head);
  }
}

/// The sequence that owns row `token`, or -1.
__device__ inline int64_t sequence_of_token(const Sequences& queries, int64_t token) {
  int64_t low = 0;
  int64_t high = queries.count;
  if (token < queries.start(0) || token >= queries.start(queries.count)) return -1;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (queries.start(middle) <= token ? low : high) = middle;
  }
  return low;
}

/// One CTA a token.
template <class Element>
__global__ void __launch_bounds__(kThreads) quaver_direct_pack_q(const QPack p) {
  const auto token = int64_t{blockIdx.x};
  const int64_t sequence = sequence_of_token(p.queries, token);
  if (sequence < 0) return;
  const Source& q = p.q;
  const auto* const rows =
      static_cast<const Element*>(q.data) + q.offset(p.queries, sequence, token - p.queries.start(sequence), 0);
  Bf16* const out = p.out + token * q.heads * q.dim;
  for (auto i = static_cast<int>(threadIdx.x); i < q.heads * q.dim; i += kThreads) {
    out[i] = to_bf16_element(rows[i / q.dim * q.head_stride + i % q.dim * q.dim_stride], 1.0F);
  }
}

}  // namespace quaver::direct
