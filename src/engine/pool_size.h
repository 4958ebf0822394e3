// How many pages the KV pool gets.
#pragma once

#include <cstdint>

#include "quaver/kv_cache.h"

namespace quaver {

struct PoolLimits {
  int64_t cache_bytes = 0;          ///< kv_cache_memory_bytes; 0: memory_utilization decides
  double memory_utilization = 0.9;  ///< gpu_memory_utilization: share of available_bytes, in (0, 1]
  int64_t available_bytes = 0;      ///< of the device, once the weights are in
  int64_t max_num_seqs = 1;
  int64_t max_model_len = 1;
  int64_t step_tokens = 1;  ///< most tokens that a step appends to one sequence
};

/// Pages for `limits`, no more than max_num_seqs sequences of max_model_len tokens can hold. Throws
/// Error(kInvalidArgument) naming the limit and the least that would do when not every cache group gets a page.
[[nodiscard]] int64_t pool_pages(const CachePlan& plan, const PoolLimits& limits);

/// Bytes that this process may still take: what the kernel calls available, less under a cgroup limit (v2).
[[nodiscard]] int64_t available_host_bytes();

}  // namespace quaver
