// Emulates src/ptx/tensor_store.cuh: same names, same meaning. A store reads shared memory when the thread waits for
// it.
#pragma once

#include <cstdint>

#include "core/tma_map.h"
#include "simt/thread.h"

namespace quaver::ptx {

inline void tensor_store(const TmaMap& map, uint32_t source, int column, int row, uint64_t /*policy*/) {
  simt::store_box({.map = map, .source = source, .column = column, .row = row});
}
inline void tensor_store_commit() {
  simt::commit_boxes();
}
inline void tensor_store_wait_read() {
  simt::wait_for_boxes();
}

}  // namespace quaver::ptx
