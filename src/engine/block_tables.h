// Block tables on the device: wide enough for the longest context and always at the same address, so that graphs may
// know them. A step sends only the page ids that its tokens see (step_block.h); this puts them into their places. CUDA
// builds only.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

namespace quaver {

/// One cache group's part of a step, in device memory.
struct TableUpdate {
  const int32_t* pages = nullptr;          ///< [B, num_columns]; negative: the table's entry stays as it is
  const int32_t* first_columns = nullptr;  ///< [B]: column of the table that column 0 of `pages` belongs to
  int32_t num_columns = 0;
  int32_t* table = nullptr;  ///< [>= B, table_width]
  int64_t table_width = 0;
};

/// table[b][first_columns[b] + j] = pages[b][j]. No synchronisation, no allocation. The columns fit the tables.
void write_tables(std::span<const TableUpdate> groups, int64_t num_sequences, cudaStream_t stream);

}  // namespace quaver
