// From the views of AttentionArgs to what the CUDA kernels take: typed pointers and strides in elements.
#pragma once

#include "attention/combine/partials.h"
#include "quaver/attention.h"
#include "quaver/tensor.h"

namespace quaver {

template <class T>
[[nodiscard]] const T* pointer(const ConstTensorView& view) {
  return static_cast<const T*>(view.data);
}

/// Strides of [T, H, …].
[[nodiscard]] inline combine::RowStrides row_strides(const ConstTensorView& view) {
  return {.token = view.strides[0], .head = view.strides[1]};
}

/// [B, Hkv], or no descale where the view is not given.
[[nodiscard]] inline combine::Descale descale(const ConstTensorView& view) {
  return {.values = pointer<float>(view), .sequence_stride = view.strides[0], .head_stride = view.strides[1]};
}

/// Where a kernel's rows go, of `group` query heads a kv head.
[[nodiscard]] inline combine::Output output_rows(const AttentionArgs& args, int group) {
  return {.out = args.out.data,
          .out_f32 = args.out.dtype == DType::kF32,
          .out_strides = row_strides(args.out),
          .lse = static_cast<float*>(args.lse.data),
          .lse_strides = row_strides(args.lse),
          .sinks = pointer<float>(args.sinks),
          .v_scale = pointer<float>(args.v_scale),
          .v_descale = descale(args.v_descale),
          .group = group};
}

}  // namespace quaver
