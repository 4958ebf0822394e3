// append_kv() on the GPU. K and V are separate jobs (gridDim.z). K needs no grouping: 16 values of a token are 16 bytes
// of its page. The 16-byte pieces of V hold one column of 16 tokens: the block kernel finds tokens that fill such a
// block and writes whole pieces, everything else is written byte by byte.
#include <bit>

#include "core/cuda.h"
#include "kv_cache/append_checks.h"
#include "kv_cache/append_write.cuh"
#include "kv_cache/device_cache.h"
#include "ptx/launch.cuh"

namespace quaver {
namespace {

using append::Target;

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kBlock = append::kVBlock;
/// Up to this many tokens every (token, head) has a warp of its own: decode tokens lie in different blocks anyway, and
/// the block kernel would leave most of the GPU idle.
constexpr int64_t kMaxTokensByWarp = 512;

/// K or V rows [T, Hkv, D].
struct Rows {
  const Bf16* data = nullptr;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
  int dim = 0;
  const float* scale = nullptr;
  int64_t scale_stride = 0;
  [[nodiscard]] __device__ const Bf16* row(int64_t token, int head) const {
    return data + token * token_stride + head * head_stride;
  }
  [[nodiscard]] __device__ float inverse(int head) const { return append::inverse_scale(scale, scale_stride, head); }
};

struct Parameters {
  Rows k{};
  Rows v{};
  const int64_t* slots = nullptr;
  int64_t slot_stride = 0;
  int64_t num_tokens = 0;
  Target target{};
  /// Slot of a token; -1 outside the batch.
  [[nodiscard]] __device__ int64_t slot(int64_t token) const {
    return token >= 0 && token < num_tokens ? __ldg(slots + token * slot_stride) : -1;
  }
};

__device__ __forceinline__ uint16_t load_bits(const Bf16* value) {
  return __ldg(reinterpret_cast<const uint16_t*>(value));
}

__device__ __forceinline__ float load(const Bf16* value) {
  return to_float(Bf16{load_bits(value)});
}

__device__ __forceinline__ uint4 load16(const Bf16* values) {
  return __ldg(reinterpret_cast<const uint4*>(values));
}

__device__ __forceinline__ void store16(uint8_t* bytes, uint4 value) {
  *reinterpret_cast<uint4*>(bytes) = value;
}

/// A warp writes K of one token and head. The row is read before slot and scale are looked at: one latency, not three.
__device__ void write_k_row(const Parameters& p, int64_t token, int head, int lane) {
  const int64_t slot = p.slot(token);
  const Bf16* row = p.k.row(token, head);
  int dim = 16 * lane;
  if (dim >= p.k.dim) return;
  uint4 low = load16(row + dim);
  uint4 high = load16(row + dim + 8);
  const float inverse = p.k.inverse(head);
  if (slot < 0) return;
  while (true) {
    store16(p.target.k(slot, head, dim), append::k_codes(low, high, inverse));
    dim += 16 * 32;
    if (dim >= p.k.dim) return;
    low = load16(row + dim);
    high = load16(row + dim + 8);
  }
}

/// A warp writes V of one token and head, a byte of every 16-byte piece. Neighbouring lanes have neighbouring columns:
/// the two bytes that fall into one 32-byte sector leave in one request.
__device__ void write_v_row(const Parameters& p, int64_t token, int head, int lane) {
  constexpr int kAtOnce = 8;
  const int64_t slot = p.slot(token);
  const Bf16* row = p.v.row(token, head);
  float values[kAtOnce];
  const auto load_columns = [&](int first) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) values[i] = first + 32 * i < p.v.dim ? load(row + first + 32 * i) : 0.0F;
  };
  load_columns(lane);
  const float inverse = p.v.inverse(head);
  if (slot < 0) return;
  for (int first = lane;;) {
    uint8_t* bytes = p.target.v(slot, head, first);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + 32 * i < p.v.dim) bytes[16 * 32 * i] = append::code(values[i], inverse);
    }
    first += 32 * kAtOnce;
    if (first >= p.v.dim) return;
    load_columns(first);
  }
}

/// Few tokens: one warp a (token, head, K or V).
__global__ void __launch_bounds__(kThreads) quaver_append_rows(const Parameters p) {
  ptx::launch_dependents();
  const auto heads = static_cast<unsigned>(p.target.layout.num_kv_heads);
  const unsigned row = blockIdx.x * kWarps + threadIdx.x / 32;
  const auto token = int64_t{row / heads};
  const auto head = static_cast<int>(row % heads);
  const auto lane = static_cast<int>(threadIdx.x % 32);
  if (token >= p.num_tokens) return;
  if (blockIdx.y == 0) {
    write_k_row(p, token, head, lane);
  } else {
    write_v_row(p, token, head, lane);
  }
}

/// K of 16 tokens by one CTA: neighbouring threads have neighbouring tokens, which lie 16 bytes apart where slots are
/// consecutive. The first pieces are loaded at once, so that V's loads can follow before they arrive.
class KTile {
 public:
  __device__ KTile(const Parameters& p, int64_t first, int head, int thread)
      : token_(first + thread % kBlock), head_(head), dim_(thread / kBlock * 16), row_(p.k.row(token_, head)) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int dim = dim_ + i * kThreads;
      if (token_ >= p.num_tokens || dim >= p.k.dim) continue;
      low_[i] = load16(row_ + dim);
      high_[i] = load16(row_ + dim + 8);
    }
  }

  __device__ void write(const Parameters& p) const {
    const int64_t slot = p.slot(token_);
    if (slot < 0) return;
    const float inverse = p.k.inverse(head_);
    const auto store = [&](int dim, uint4 low, uint4 high) {
      if (dim < p.k.dim) store16(p.target.k(slot, head_, dim), append::k_codes(low, high, inverse));
    };
#pragma unroll
    for (int i = 0; i < kPieces; ++i) store(dim_ + i * kThreads, low_[i], high_[i]);
    for (int dim = dim_ + kPieces * kThreads; dim < p.k.dim; dim += kThreads) {
      store(dim, load16(row_ + dim), load16(row_ + dim + 8));
    }
  }

 private:
  static constexpr int kPieces = 2;  // head dims up to 256
  int64_t token_;
  int head_;
  int dim_;
  const Bf16* row_;
  uint4 low_[kPieces];
  uint4 high_[kPieces];
};

/// Two columns of a whole block: 4-byte loads, 32 bytes stored.
struct VColumns {
  uint32_t words[kBlock];

  __device__ void load(const Bf16* rows, int64_t token_stride) {
#pragma unroll
    for (int u = 0; u < kBlock; ++u) words[u] = __ldg(reinterpret_cast<const uint32_t*>(rows + u * token_stride));
  }
  __device__ void store(uint8_t* bytes, float inverse) const {
    store16(bytes, append::v_block_codes([&](int u) { return append::unpack(words[u]).x; }, inverse));
    store16(bytes + 16, append::v_block_codes([&](int u) { return append::unpack(words[u]).y; }, inverse));
  }
};

/// Many tokens: one CTA a (16 tokens, head). Every load that can be is in flight before the first store.
__global__ void __launch_bounds__(kThreads) quaver_append_tiles(const Parameters p) {
  ptx::launch_dependents();
  const auto heads = static_cast<unsigned>(p.target.layout.num_kv_heads);
  const auto first = int64_t{blockIdx.x / heads} * kBlock;
  const auto head = static_cast<int>(blockIdx.x % heads);
  const auto thread = static_cast<int>(threadIdx.x);
  const KTile keys(p, first, head, thread);
  const append::VTile tile = append::find_blocks([&](int64_t token) { return p.slot(token); }, first, thread % 32);
  const int begin = tile.whole != 0 ? __ffs(static_cast<int>(tile.whole)) - 1 : 0;
  const int64_t block_slot = __shfl_sync(~0U, tile.slot, begin);
  const Bf16* rows = p.v.row(first - kBlock + begin, head);
  int dim = 2 * thread;
  const auto in_block = [&] { return tile.whole != 0 && dim < p.v.dim; };
  VColumns columns;
  if (in_block()) columns.load(rows + dim, p.v.token_stride);
  keys.write(p);
  const float inverse = p.v.inverse(head);
  while (in_block()) {
    columns.store(p.target.v(block_slot, head, dim), inverse);
    dim += 2 * kThreads;
    if (in_block()) columns.load(rows + dim, p.v.token_stride);
  }
  for (uint32_t left = tile.ragged; left != 0; left &= left - 1) {
    const int at = __ffs(static_cast<int>(left)) - 1;
    const int64_t slot = __shfl_sync(~0U, tile.slot, at);
    const Bf16* row = p.v.row(first - kBlock + at, head);
    for (int column = thread; column < p.v.dim; column += kThreads) {
      *p.target.v(slot, head, column) = append::code(load(row + column), inverse);
    }
  }
}

/// BF16 cache: one CTA a (token, head, K or V).
__global__ void __launch_bounds__(kThreads) quaver_append_bf16(const Parameters p) {
  ptx::launch_dependents();
  const auto heads = static_cast<unsigned>(p.target.layout.num_kv_heads);
  const auto token = int64_t{blockIdx.x / heads};
  const auto head = static_cast<int>(blockIdx.x % heads);
  const int64_t slot = p.slot(token);
  if (slot < 0) return;
  const bool keys = blockIdx.y == 0;
  const Rows& rows = keys ? p.k : p.v;
  auto* out = reinterpret_cast<Bf16*>(keys ? p.target.k(slot, head, 0) : p.target.v(slot, head, 0));
  const float inverse = rows.inverse(head);
  for (int dim = static_cast<int>(threadIdx.x); dim < rows.dim; dim += kThreads) {
    out[dim] = append::scaled_bf16(Bf16{load_bits(rows.row(token, head) + dim)}, inverse);
  }
}

Rows rows_of(const ConstTensorView& rows, const ConstTensorView& scale) {
  return {.data = static_cast<const Bf16*>(rows.data),
          .token_stride = rows.strides[0],
          .head_stride = rows.strides[1],
          .dim = static_cast<int>(rows.dim(2)),
          .scale = static_cast<const float*>(scale.data),
          .scale_stride = scale.strides[0]};
}

}  // namespace

void append_kv(const AppendArgs& args, cudaStream_t stream) {
  check_append_tensors(args, Device::Kind::kCuda);
  const int64_t num_tokens = args.slots.dim(0);
  const KvLayout& layout = args.layout;
  const int64_t num_rows = num_tokens * layout.num_kv_heads;
  check(num_rows <= INT32_MAX, "rows (tokens * kv heads) ", num_rows, ": expected at most ", INT32_MAX);
  if (num_tokens == 0) return;
  const Parameters parameters{.k = rows_of(args.k, args.k_scale),
                              .v = rows_of(args.v, args.v_scale),
                              .slots = static_cast<const int64_t*>(args.slots.data),
                              .slot_stride = args.slots.strides[0],
                              .num_tokens = num_tokens,
                              .target = {.pages = static_cast<uint8_t*>(args.pages.data),
                                         .page_stride = args.pages.strides[0],
                                         .page_shift = std::countr_zero(static_cast<unsigned>(layout.page_size)),
                                         .layout = layout}};
  // Not launched programmatically: starting beside the kernel in front measured 1.6 us slower a layer (b128, kv 1024).
  const auto rows = static_cast<unsigned>(num_rows);
  if (layout.dtype == KvDtype::kBF16) {
    launch(quaver_append_bf16, dim3(rows, 2), kThreads, 0, stream, parameters);
  } else if (num_tokens <= kMaxTokensByWarp) {
    launch(quaver_append_rows, dim3((rows + kWarps - 1) / kWarps, 2), kThreads, 0, stream, parameters);
  } else {
    const int64_t tiles = (num_tokens + kBlock - 1) / kBlock;
    launch(quaver_append_tiles, dim3(static_cast<unsigned>(tiles * layout.num_kv_heads)), kThreads, 0, stream,
           parameters);
  }
}

}  // namespace quaver
