// Packing: K and V of a call without a cache into scratch pages, Q into dense BF16 rows. The CPU's functions; pack.cuh
// has the kernels and device_pack.h their launches, which write the same bytes.
#pragma once

#include <cstdint>

#include "attention/direct/places.h"
#include "quaver/kv_cache.h"
#include "quaver/tensor.h"

namespace quaver::direct {

/// Rows of Q, K or V in either form.
struct Source {
  const void* data = nullptr;
  DType dtype = DType::kBF16;  ///< kBF16, kF32, or kE4M3 for codes
  int64_t batch_stride = 0;    ///< in elements, as all strides
  int64_t token_stride = 0;
  int64_t head_stride = 0;
  int64_t dim_stride = 0;
  int heads = 0;
  int dim = 0;
  [[nodiscard]] QUAVER_HD constexpr int64_t offset(const Sequences& sequences, int64_t sequence, int64_t token,
                                                   int head) const {
    const int64_t row = sequences.starts != nullptr ? (sequences.start(sequence) + token) * token_stride
                                                    : sequence * batch_stride + token * token_stride;
    return row + head * head_stride;
  }
};

/// [B, S, H, D] or [T, H, D]; u8 is e4m3.
[[nodiscard]] Source source_of(const ConstTensorView& view);

inline constexpr int kBlock = 16;  ///< tokens that an FP8 page interleaves, and a CTA packs

struct KvPack {
  KvLayout layout{};
  Source k{};
  Source v{};
  Sequences keys{};
  const float* k_scale = nullptr;  ///< [Hkv], or null: 1.0
  int64_t k_scale_stride = 0;
  const float* v_scale = nullptr;
  int64_t v_scale_stride = 0;
  /// [num_scratch_pages, page_bytes], 16-byte aligned. Behind a sequence's end V of an FP8 page is zero up to 16
  /// tokens, other bytes stay.
  uint8_t* pages = nullptr;
  int64_t num_keys = 0;  ///< of all sequences
};

struct QPack {
  Source q{};
  Sequences queries{};
  int64_t num_tokens = 0;
  Bf16* out = nullptr;       ///< [T, Hq, Dk]
  float* out_f32 = nullptr;  ///< in its place, CPU only
};

void pack_kv(const KvPack& pack);
void pack_q(const QPack& pack);

}  // namespace quaver::direct
