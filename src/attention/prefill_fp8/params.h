// What the prefill kernel takes: device pointers, strides in elements, and the work list.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "attention/combine/partials.h"
#include "attention/schedule/block_list.h"
#include "quaver/kv_cache.h"

namespace quaver::prefill_fp8 {

using combine::Descale;
using combine::Output;
using combine::Partials;
using combine::RowStrides;

struct Parameters {
  const __nv_bfloat16* q = nullptr;  ///< [T, Hq, D]
  RowStrides q_strides{};
  const uint8_t* pages = nullptr;  ///< [num_pages] of page_stride bytes
  int64_t page_stride = 0;
  const int32_t* block_table = nullptr;  ///< [B, max_pages]
  int64_t block_table_stride = 0;
  KvLayout layout{};
  int page_shift = 0;              ///< log2 of the page size
  const float* k_scale = nullptr;  ///< [Hkv] or null
  Descale q_descale{};
  Descale k_descale{};
  float scale_log2 = 0.0F;      ///< softmax scale * log2(e)
  float softcap_log2 = 0.0F;    ///< softcap * log2(e); 0: none
  float softcap_inward = 0.0F;  ///< 2 * log2(e) / softcap_log2: from logits to the exponent inside tanh
  tiles::Mask mask{};
  const int32_t* span_ends = nullptr;  ///< [T] (schedule/span_ends.h), or null
  int group = 1;                       ///< query heads of one kv head
  schedule::BlockListView work{};
  Output output{};
  Partials partials{};  ///< of items that are parts of a block
};

}  // namespace quaver::prefill_fp8
