#include "ops/cuda/qkv_append.cuh"

#include <algorithm>
#include <bit>

#include "kv_cache/page_format.h"
#include "ops/cuda/launch_rows.h"
#include "ops/cuda/rope_table.cuh"

namespace quaver::device_ops {
namespace {

/// Warps, and CTAs of V, take as many heads as make the grid fit on the SMs at once, up to 8.
constexpr int kMaxHeads = 8;
constexpr int kMaxHeadDim = 512;
constexpr int kRopeThreads = 256;

constexpr int ceil_divide(int value, int divisor) {
  return (value + divisor - 1) / divisor;
}

void check_args(const QkvAppendArgs& args) {
  const KvLayout& layout = args.layout;
  check_layout(layout);
  const int dim = layout.head_dim_k;
  check(layout.head_dim_v == dim && dim % 16 == 0 && dim <= kMaxHeadDim, "head dims ", dim, " and ", layout.head_dim_v,
        ": expected one multiple of 16 up to ", kMaxHeadDim);
  check(args.num_q_heads > 0, "q heads ", args.num_q_heads, ": expected > 0");
  check(args.rotary_pairs >= 0 && args.rotary_pairs <= dim / 2, "rotary pairs ", args.rotary_pairs, ": expected 0 to ",
        dim / 2);
  check(args.eps > 0, "eps ", args.eps, ": expected > 0");
  check(args.num_tokens >= 0 && args.num_tokens <= INT32_MAX / (args.num_q_heads + 2 * layout.num_kv_heads), "tokens ",
        args.num_tokens, ": expected 0 to ", INT32_MAX / (args.num_q_heads + 2 * layout.num_kv_heads));
  if (args.num_tokens == 0) return;
  check_pointer("qkv", args.qkv);
  check_pointer("q norm", args.q_norm);
  check_pointer("k norm", args.k_norm);
  check_pointer("slots", args.slots, 8);
  if (args.rotary_pairs > 0) check_pointer("rope table", args.rope_table);
  const int64_t page_bytes = page_format::page_bytes(layout);
  check(args.pages.dtype == DType::kU8 && args.pages.rank == 2 && args.pages.stride(1) == 1 &&
            args.pages.dim(1) >= page_bytes && args.pages.stride(0) % 16 == 0,
        "pages ", to_string(args.pages), ": expected u8[num_pages, >= ", page_bytes,
        "], rows at multiples of 16 bytes");
  check_pointer("pages", args.pages.data);
}

/// Chunks of heads, `p.heads_per_warp` each, and all CTAs.
template <int kLanes>
int64_t share_out(QkvParameters& p, bool tiles) {
  const int kv_heads = p.num_kv_heads();
  p.q_chunks = ceil_divide(p.num_q_heads, p.heads_per_warp);
  p.k_chunks = ceil_divide(kv_heads, p.heads_per_warp);
  p.v_chunks = tiles ? 0 : ceil_divide(kv_heads, p.v_heads_per_warp);
  const int64_t warps = (p.num_tokens * kLanes + 31) / 32 * (p.q_chunks + p.k_chunks + p.v_chunks);
  return p.v_ctas + (warps + kQkvWarps - 1) / kQkvWarps;
}

template <int kLanes>
void launch_qkv(QkvParameters p, cudaStream_t stream) {
  const int64_t resident = kQkvCtasPerSm * num_sms();
  const int kv_heads = p.num_kv_heads();
  const bool codes = p.target.layout.dtype == KvDtype::kE4M3;
  const bool tiles = codes && p.num_tokens > kFewTokens;
  if (tiles) {
    const int64_t count = (p.num_tokens + append::kVBlock - 1) / append::kVBlock;
    p.v_tile_heads = static_cast<int>(std::clamp<int64_t>((count * kv_heads + resident - 1) / resident, 1, kMaxHeads));
    p.v_tile_parts = ceil_divide(kv_heads, p.v_tile_heads);
    p.v_ctas = static_cast<int>(count * p.v_tile_parts);
  }
  int64_t ctas = 0;
  for (p.heads_per_warp = 1;; ++p.heads_per_warp) {
    p.v_heads_per_warp = codes ? 1 : p.heads_per_warp;
    ctas = share_out<kLanes>(p, tiles);
    if (ctas <= resident || p.heads_per_warp == kMaxHeads) break;
  }
  launch_programmatic(quaver_qkv_append<kLanes>, dim3(static_cast<unsigned>(ctas)), kQkvThreads, 0, stream, p);
}

}  // namespace

void rope_table(const RopeTableArgs& args, cudaStream_t stream) {
  check(args.rotary_pairs >= 0 && args.num_tokens >= 0, "rotary pairs ", args.rotary_pairs, " and tokens ",
        args.num_tokens, ": expected >= 0");
  if (args.num_tokens == 0 || args.rotary_pairs == 0) return;
  check_pointer("positions", args.positions, 4);
  check_pointer("frequencies", args.frequencies, 4);
  check_pointer("rope table", args.table);
  const auto pairs = static_cast<int>(rope_table_width(args.rotary_pairs) / 2);
  const int64_t most_tokens = (INT32_MAX - kRopeThreads) / pairs;
  check(args.num_tokens <= most_tokens, "tokens ", args.num_tokens, ": expected at most ", most_tokens);
  const int64_t ctas = (args.num_tokens * pairs + kRopeThreads - 1) / kRopeThreads;
  launch_programmatic(quaver_rope_table<kRopeThreads>, dim3(static_cast<unsigned>(ctas)), kRopeThreads, 0, stream,
                      RopeTableParameters{.positions = args.positions,
                                          .frequencies = args.frequencies,
                                          .rotary_pairs = args.rotary_pairs,
                                          .pairs = pairs,
                                          .num_tokens = static_cast<int>(args.num_tokens),
                                          .table = reinterpret_cast<float2*>(args.table)});
}

void qkv_append(const QkvAppendArgs& args, cudaStream_t stream) {
  check_args(args);
  if (args.num_tokens == 0) return;
  const KvLayout& layout = args.layout;
  const int kv_heads = layout.num_kv_heads;
  const bool fp8 = layout.dtype == KvDtype::kE4M3;
  const QkvParameters parameters{
      .qkv = args.qkv,
      .row_stride = int64_t{args.num_q_heads + (args.k_eq_v ? 1 : 2) * kv_heads} * layout.head_dim_k,
      .num_tokens = args.num_tokens,
      .num_q_heads = args.num_q_heads,
      .v_head = args.num_q_heads + (args.k_eq_v ? 0 : kv_heads),
      .q_norm = args.q_norm,
      .k_norm = args.k_norm,
      .v_norm = args.v_norm,
      .eps = args.eps,
      .inverse_dim = 1.0F / static_cast<float>(layout.head_dim_k),
      .table_pairs = static_cast<int>(rope_table_width(args.rotary_pairs) / 2),
      .rope_table = args.rope_table,
      .slots = args.slots,
      .k_scale = fp8 ? args.k_scale : nullptr,
      .v_scale = fp8 ? args.v_scale : nullptr,
      .target = {.pages = static_cast<uint8_t*>(args.pages.data),
                 .page_stride = args.pages.stride(0),
                 .page_shift = std::countr_zero(static_cast<unsigned>(layout.page_size)),
                 .layout = layout}};
  const int dim = layout.head_dim_k;
  if (dim <= 64) {
    launch_qkv<4>(parameters, stream);
  } else if (dim <= 128) {
    launch_qkv<8>(parameters, stream);
  } else if (dim <= 256) {
    launch_qkv<16>(parameters, stream);
  } else {
    launch_qkv<32>(parameters, stream);
  }
}

}  // namespace quaver::device_ops
