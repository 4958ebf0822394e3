// What writing K and V into the FP8 cache costs, at head dim 256 and 16 kv heads. One JSON object a case.
#pragma once

#include <nlohmann/json.hpp>

#include "attention/timer.h"

namespace quaver::bench {

/// One prompt at an unaligned start, on pages in random order; every byte is compared with the CPU's. kv_gbps counts
/// BF16 bytes read and FP8 bytes written, and pct_ceiling is of the copy ceiling.
[[nodiscard]] nlohmann::json append_prompt(int64_t tokens, double copy_ceiling, Timer& timer);

/// One layer of a decode step of `batch` sequences inside a CUDA graph of 8 layers with their own pages: append in
/// front of attention, and each alone. kv_gbps counts what attention reads.
[[nodiscard]] nlohmann::json append_step(int64_t batch, int32_t length, const DeviceBuffer<uint8_t>& pool,
                                         double read_ceiling, Timer& timer);

}  // namespace quaver::bench
