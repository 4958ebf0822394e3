// The KV cache in device memory: append, page copies and read-back, queued on a stream. Nothing here allocates or
// synchronises, so all of it can be part of a CUDA graph. CUDA builds only.
#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "kv_cache/manager.h"
#include "quaver/kv_cache.h"

namespace quaver {

/// append_kv() on the GPU, same bytes as the CPU's: BF16 rows, all tensors on one device. For an FP8 cache rows begin
/// at multiples of 16 bytes. Throws Error(kInvalidArgument) before anything is launched for what the host can see:
/// shapes, dtypes, strides, alignment, devices. What only the device can see is trusted: slots are −1 (skip) or below
/// num_pages * page_size and all different, scales are positive and finite; anything else writes out of bounds, leaves
/// either of two rows, or stores wrong codes. Later work on `stream` that was launched with programmatic launch must
/// execute griddepcontrol.wait before it reads pages.
void append_kv(const AppendArgs& args, cudaStream_t stream);

/// Copies whole pages in every slab of `slabs` (u8[num_slabs, num_pages, page_bytes]), as if one after another in the
/// order of `copies`: what KvManager::append() asks for. Throws Error(kInvalidArgument) for a page id out of range.
void copy_pages(const TensorView& slabs, std::span<const PageCopy> copies, cudaStream_t stream);

/// read_back() on the GPU.
struct ReadBackArgs {
  KvLayout layout{};
  ConstTensorView pages;        ///< [num_pages, >= page_bytes(layout)] u8
  ConstTensorView block_table;  ///< [max_pages] i32: the pages of one sequence; -1: its tokens read as zeros
  int64_t length = 0;           ///< tokens 0 … length - 1 are read
  ConstTensorView k_scale;      ///< [Hkv] f32, optional (1.0)
  ConstTensorView v_scale;      ///< [Hkv] f32, optional (1.0)
  TensorView k;                 ///< [length, Hkv, Dk] f32 or bf16, dense
  TensorView v;                 ///< [length, Hkv, Dv] of the same dtype, dense
};

/// K and V of one sequence in natural order, dequantised: for debugging and tests. Throws Error(kInvalidArgument) for
/// shapes, dtypes and devices; page ids are trusted.
void read_back(const ReadBackArgs& args, cudaStream_t stream);

}  // namespace quaver
