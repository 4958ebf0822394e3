// What the decode and combine kernels take: device pointers, strides in elements, and the work list.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "attention/combine/partials.h"
#include "attention/schedule/work_list.h"
#include "quaver/kv_cache.h"

namespace quaver::decode_fp8 {

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
  schedule::SequenceLengths lengths{};
  KvLayout layout{};
  int page_shift = 0;              ///< log2 of the page size
  const float* k_scale = nullptr;  ///< [Hkv] or null
  Descale q_descale{};
  Descale k_descale{};
  float scale_log2 = 0.0F;        ///< softmax scale * log2(e)
  float softcap_log2 = 0.0F;      ///< softcap * log2(e); 0: none
  uint32_t low_part_mask = ~0U;   ///< `split`: all ones; `single`: 0, the lo parts of Q and P are zero
  bool combine_in_kernel = true;  ///< the CTA that writes an item's last part adds them up; else the combine kernel
  bool loads_early = false;       ///< InFront::kNewKeys
  schedule::ScheduleShape shape{};
  schedule::WorkListView work{};
  Partials partials{};
  Output output{};
};

}  // namespace quaver::decode_fp8
