// Bulk tensor copies from shared to global memory. One instruction per function.
#pragma once

#include <cstdint>

#include "core/tma_map.h"

namespace quaver::ptx {

/// PTX ISA "cp.async.bulk.tensor", shared::cta to global, two dimensions: the box at `source` (1,024-byte aligned for a
/// map with 128-byte swizzle) to columns from `column` and rows from `row` on; `policy` as in bulk_copy.cuh.
__device__ __forceinline__ void tensor_store(const TmaMap& map, uint32_t source, int column, int row, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group.L2::cache_hint [%0, {%1, %2}], [%3], %4;" ::"l"(&map),
      "r"(column), "r"(row), "r"(source), "l"(policy)
      : "memory");
}

/// PTX ISA "cp.async.bulk.commit_group": of the stores that this thread has issued.
__device__ __forceinline__ void tensor_store_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/// PTX ISA "cp.async.bulk.wait_group.read": until all groups of this thread have read their shared memory.
__device__ __forceinline__ void tensor_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

}  // namespace quaver::ptx
