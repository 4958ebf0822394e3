// Emulates src/ptx/prefetch.cuh: there is no cache.
#pragma once

namespace quaver::ptx {

inline void prefetch_l2(const void* /*address*/) {}

}  // namespace quaver::ptx
