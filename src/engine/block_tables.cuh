// The kernel of block_tables.h.
#pragma once

#include <array>

#include "engine/block_tables.h"

namespace quaver::block_tables {

inline constexpr int kThreads = 128;
inline constexpr int kMaxGroups = 16;  // a launch: their pointers travel as kernel parameters

struct Parameters {
  std::array<TableUpdate, kMaxGroups> groups{};
};

/// Grid: (sequences, groups).
__global__ void __launch_bounds__(kThreads) quaver_write_tables(const __grid_constant__ Parameters p) {
  const TableUpdate& group = p.groups[blockIdx.y];
  const int64_t sequence = blockIdx.x;
  const int32_t* pages = group.pages + sequence * group.num_columns;
  int32_t* row = group.table + sequence * group.table_width + group.first_columns[sequence];
  for (int column = static_cast<int>(threadIdx.x); column < group.num_columns; column += kThreads) {
    if (const int32_t page = pages[column]; page >= 0) row[column] = page;
  }
}

}  // namespace quaver::block_tables
