#include "core/bf16.h"
#include "core/cuda.h"
#include "core/e4m3.h"
#include "kv_cache/device_cache.h"
#include "kv_cache/page_format.h"

namespace quaver {
namespace {

constexpr int kThreads = 128;

struct Parameters {
  KvLayout layout{};
  const uint8_t* pages = nullptr;
  int64_t page_stride = 0;
  const int32_t* block_table = nullptr;
  int64_t table_stride = 0;
  const float* scales[2] = {};  ///< K, V
  int64_t scale_strides[2] = {};
  void* out[2] = {};
  bool out_f32 = false;
};

/// Grid: (tokens, kv heads, K and V).
__global__ void __launch_bounds__(kThreads) quaver_read_back(const __grid_constant__ Parameters p) {
  const KvLayout& layout = p.layout;
  const auto token = int64_t{blockIdx.x};
  const auto head = static_cast<int>(blockIdx.y);
  const auto half = static_cast<int>(blockIdx.z);
  const int dim = half == 0 ? layout.head_dim_k : layout.head_dim_v;
  const int64_t page = p.block_table[token / layout.page_size * p.table_stride];
  const auto in_page = static_cast<int>(token % layout.page_size);
  const float scale = p.scales[half] == nullptr ? 1.0F : p.scales[half][head * p.scale_strides[half]];
  const int64_t row = (token * layout.num_kv_heads + head) * dim;
  for (int d = static_cast<int>(threadIdx.x); d < dim; d += kThreads) {
    float value = 0.0F;
    if (page >= 0) {
      const uint8_t* stored = p.pages + page * p.page_stride +
                              (half == 0 ? page_format::k_offset(layout, head, in_page, d)
                                         : page_format::v_offset(layout, head, in_page, d));
      value = scale * (layout.dtype == KvDtype::kE4M3 ? e4m3_decode(*stored)
                                                      : to_float(*reinterpret_cast<const Bf16*>(stored)));
    }
    if (p.out_f32) {
      static_cast<float*>(p.out[half])[row + d] = value;
    } else {
      static_cast<Bf16*>(p.out[half])[row + d] = to_bf16(value);
    }
  }
}

void check_out(const char* name, const TensorView& out, const ReadBackArgs& args, int dim) {
  const ConstTensorView view = out;
  check(view.rank == 3 && view.dim(0) == args.length && view.dim(1) == args.layout.num_kv_heads && view.dim(2) == dim &&
            (view.dtype == DType::kF32 || view.dtype == DType::kBF16) && view.dtype == args.k.dtype &&
            view.device == args.pages.device && view.stride(2) == 1 && view.stride(1) == dim &&
            view.stride(0) == int64_t{dim} * args.layout.num_kv_heads,
        name, " ", to_string(view), ": expected dense f32 or bf16 [", args.length, ", ", args.layout.num_kv_heads, ", ",
        dim, "] on ", to_string(args.pages.device));
}

}  // namespace

void read_back(const ReadBackArgs& args, cudaStream_t stream) {
  const KvLayout& layout = args.layout;
  check_layout(layout);
  const int64_t page_bytes = page_format::page_bytes(layout);
  check(args.pages.given() && args.pages.dtype == DType::kU8 && args.pages.rank == 2 && args.pages.stride(1) == 1 &&
            args.pages.dim(1) >= page_bytes && args.pages.device.kind == Device::Kind::kCuda,
        "pages ", to_string(args.pages), ": expected u8[num_pages, >= ", page_bytes, "] on cuda");
  check(args.block_table.dtype == DType::kI32 && args.block_table.rank == 1 &&
            args.block_table.device == args.pages.device,
        "block_table ", to_string(args.block_table), ": expected i32[max_pages] on ", to_string(args.pages.device));
  check(args.length >= 0 && args.length <= INT32_MAX && args.length <= args.block_table.dim(0) * layout.page_size,
        "length ", args.length, ": expected 0 to the ", args.block_table.dim(0) * layout.page_size,
        " tokens of the block table");
  for (const ConstTensorView& scale : {args.k_scale, args.v_scale}) {
    check(!scale.given() || (scale.dtype == DType::kF32 && scale.rank == 1 && scale.dim(0) == layout.num_kv_heads &&
                             scale.device == args.pages.device),
          "scales ", to_string(scale), ": expected f32[", layout.num_kv_heads, "] on ", to_string(args.pages.device));
  }
  check_out("k", args.k, args, layout.head_dim_k);
  check_out("v", args.v, args, layout.head_dim_v);
  if (args.length == 0) return;
  const Parameters parameters{
      .layout = layout,
      .pages = static_cast<const uint8_t*>(args.pages.data),
      .page_stride = args.pages.strides[0],
      .block_table = static_cast<const int32_t*>(args.block_table.data),
      .table_stride = args.block_table.strides[0],
      .scales = {static_cast<const float*>(args.k_scale.data), static_cast<const float*>(args.v_scale.data)},
      .scale_strides = {args.k_scale.strides[0], args.v_scale.strides[0]},
      .out = {args.k.data, args.v.data},
      .out_f32 = args.k.dtype == DType::kF32};
  const dim3 grid(static_cast<unsigned>(args.length), static_cast<unsigned>(layout.num_kv_heads), 2);
  launch(quaver_read_back, grid, kThreads, 0, stream, parameters);
}

}  // namespace quaver
