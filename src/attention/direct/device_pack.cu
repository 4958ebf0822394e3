#include "attention/direct/device_pack.h"

#include "attention/direct/pack.cuh"
#include "core/cuda.h"

namespace quaver::direct {
namespace {

using KvKernel = void (*)(KvPack);
using QKernel = void (*)(QPack);

template <class K>
KvKernel kv_kernel(DType v) {
  if (v == DType::kE4M3) return quaver_direct_pack_kv<K, uint8_t>;
  return v == DType::kBF16 ? quaver_direct_pack_kv<K, Bf16> : quaver_direct_pack_kv<K, float>;
}

KvKernel kv_kernel(DType k, DType v) {
  if (k == DType::kE4M3) return kv_kernel<uint8_t>(v);
  return k == DType::kBF16 ? kv_kernel<Bf16>(v) : kv_kernel<float>(v);
}

QKernel q_kernel(DType q) {
  if (q == DType::kE4M3) return quaver_direct_pack_q<uint8_t>;
  return q == DType::kBF16 ? quaver_direct_pack_q<Bf16> : quaver_direct_pack_q<float>;
}

}  // namespace

void make_tables(const TablesPack& pack, cudaStream_t stream) {
  if (pack.keys.count == 0) return;
  launch(quaver_direct_tables, dim3(static_cast<unsigned>(pack.keys.count)), kThreads, 0, stream, pack);
}

void pack_kv(const KvPack& pack, cudaStream_t stream) {
  const int64_t pages = num_scratch_pages(pack.num_keys, pack.keys.count, pack.layout.page_size);
  const int64_t blocks = pages * (pack.layout.page_size / kBlock);
  if (pack.num_keys == 0 || pack.keys.count == 0) return;
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(pack.layout.num_kv_heads), 2);
  launch(kv_kernel(pack.k.dtype, pack.v.dtype), grid, kThreads, 0, stream, pack);
}

void pack_q(const QPack& pack, cudaStream_t stream) {
  if (pack.num_tokens == 0 || pack.queries.count == 0) return;
  launch(q_kernel(pack.q.dtype), dim3(static_cast<unsigned>(pack.num_tokens)), kThreads, 0, stream, pack);
}

}  // namespace quaver::direct
