#include "engine/block_tables.cuh"

#include <algorithm>

#include "core/cuda.h"

namespace quaver {

void write_tables(std::span<const TableUpdate> groups, int64_t num_sequences, cudaStream_t stream) {
  using namespace block_tables;
  if (num_sequences == 0) return;
  for (size_t first = 0; first < groups.size(); first += kMaxGroups) {
    const auto part = groups.subspan(first, std::min<size_t>(kMaxGroups, groups.size() - first));
    Parameters parameters;
    std::copy(part.begin(), part.end(), parameters.groups.begin());
    const dim3 grid(static_cast<unsigned>(num_sequences), static_cast<unsigned>(part.size()));
    launch(quaver_write_tables, grid, kThreads, 0, stream, parameters);
  }
}

}  // namespace quaver
