// Launches of pack.cuh. Nothing allocates or synchronises. CUDA builds only.
#pragma once

#include <cuda_runtime_api.h>

#include "attention/direct/pack.h"

namespace quaver::direct {

/// Block table [B, width], seq_lens [B] and, for the batched form, query_start [B+1] (else null) of scratch pages.
struct TablesPack {
  Sequences queries{};
  Sequences keys{};
  int page_size = 0;
  int64_t table_width = 0;
  int32_t* block_table = nullptr;
  int32_t* seq_lens = nullptr;
  int32_t* query_start = nullptr;
};

void make_tables(const TablesPack& pack, cudaStream_t stream);
void pack_kv(const KvPack& pack, cudaStream_t stream);
void pack_q(const QPack& pack, cudaStream_t stream);

}  // namespace quaver::direct
