// Items that were cut over their keys: what the combine kernel reads.
#pragma once

#include "core/host_device.h"

namespace quaver::schedule {

/// Slots of the partial results of an item: part k lies in slot first (k = 0) or rest + k.
struct PartSlots {
  int first = 0;
  int rest = 0;
  [[nodiscard]] QUAVER_HD constexpr int slot(int part) const { return part == 0 ? first : rest + part; }
};

/// A cut item. Read in 16-byte words.
struct alignas(16) CutRecord {
  int num_parts = 0;
  int sequence = 0;
  int head = 0;
  int query_begin = 0;
  int rows = 0;
  PartSlots slots{};
  int first_row = 0;  ///< of the kv head's rows in the sequence
};

struct CutListView {
  const CutRecord* records = nullptr;
  const int* count = nullptr;
};

}  // namespace quaver::schedule
