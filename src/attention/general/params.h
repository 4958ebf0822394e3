// What the general kernel takes: device pointers, strides in elements.
#pragma once

#include <cstdint>

#include "attention/combine/partials.h"
#include "attention/tiles.h"
#include "core/bf16.h"
#include "quaver/kv_cache.h"

namespace quaver::general {

using combine::Descale;
using combine::RowStrides;

struct Parameters {
  const Bf16* q = nullptr;  ///< [T, Hq, Dk]
  RowStrides q_strides{};
  int64_t num_rows = 0;  ///< T * Hq
  int num_q_heads = 1;
  int group = 1;
  const uint8_t* pages = nullptr;
  int64_t page_stride = 0;
  KvLayout layout{};
  const int32_t* block_table = nullptr;  ///< [B, max_pages]
  int64_t block_table_stride = 0;
  const int32_t* seq_lens = nullptr;     ///< [B]
  const int32_t* query_start = nullptr;  ///< [B+1]
  int num_sequences = 0;
  tiles::Mask mask{};
  const int32_t* span_ids = nullptr;  ///< [T] or null
  const float* k_scale = nullptr;     ///< [Hkv] or null
  const float* v_scale = nullptr;     ///< [Hkv] or null
  Descale q_descale{};
  Descale k_descale{};
  Descale v_descale{};
  float softmax_scale = 1.0F;
  float softcap = 0.0F;          ///< 0: none
  const float* sinks = nullptr;  ///< [Hq] or null
  void* out = nullptr;           ///< [T, Hq, Dv] bf16 or f32
  bool out_f32 = false;
  RowStrides out_strides{};
  float* lse = nullptr;  ///< [T, Hq] or null
  RowStrides lse_strides{};
};

}  // namespace quaver::general
