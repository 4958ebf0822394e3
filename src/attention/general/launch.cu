#include "attention/general/launch.h"

#include <algorithm>

#include "attention/device_views.h"
#include "attention/general/kernel.cuh"
#include "core/cuda.h"

namespace quaver::general {
namespace {

/// Rows beyond this many are walked by the same CTAs, so that any number of rows fits a grid.
constexpr int64_t kMaxCtas = int64_t{1} << 20;

using Kernel = void (*)(Parameters);

Kernel kernel_for(KvDtype dtype) {
  return dtype == KvDtype::kE4M3 ? quaver_general<KvDtype::kE4M3> : quaver_general<KvDtype::kBF16>;
}

}  // namespace

void prepare(const AttentionProblem& problem, const DeviceInfo& device) {
  const int64_t bytes = shared_bytes(problem.kv);
  constexpr int64_t kStatic = 4 * kWarps * (kTile + 2);
  check_as(ErrorKind::kUnsupported, bytes + kStatic <= device.shared_bytes_per_cta, "head dims ", problem.kv.head_dim_k,
           " and ", problem.kv.head_dim_v, ": expected Dk + ", kWarps, " Dv floats to fit the ",
           device.shared_bytes_per_cta, " bytes of shared memory of ", device.name);
  check_cuda(cudaFuncSetAttribute(kernel_for(problem.kv.dtype), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(device.shared_bytes_per_cta - kStatic)),
             "cudaFuncSetAttribute");
}

void run(const AttentionProblem& problem, const AttentionArgs& args, cudaStream_t stream) {
  const int64_t num_rows = args.q.dim(0) * problem.num_q_heads;
  if (num_rows == 0) return;
  const Parameters parameters{.q = pointer<Bf16>(args.q),
                              .q_strides = row_strides(args.q),
                              .num_rows = num_rows,
                              .num_q_heads = problem.num_q_heads,
                              .group = problem.num_q_heads / problem.kv.num_kv_heads,
                              .pages = pointer<uint8_t>(args.pages),
                              .page_stride = args.pages.strides[0],
                              .layout = problem.kv,
                              .block_table = pointer<int32_t>(args.block_table),
                              .block_table_stride = args.block_table.strides[0],
                              .seq_lens = pointer<int32_t>(args.seq_lens),
                              .query_start = pointer<int32_t>(args.query_start),
                              .num_sequences = static_cast<int>(args.seq_lens.dim(0)),
                              .mask = {.causal = problem.causal, .window = problem.window},
                              .span_ids = pointer<int32_t>(args.span_ids),
                              .k_scale = pointer<float>(args.k_scale),
                              .v_scale = pointer<float>(args.v_scale),
                              .q_descale = descale(args.q_descale),
                              .k_descale = descale(args.k_descale),
                              .v_descale = descale(args.v_descale),
                              .softmax_scale = args.softmax_scale,
                              .softcap = problem.softcap,
                              .sinks = pointer<float>(args.sinks),
                              .out = args.out.data,
                              .out_f32 = args.out.dtype == DType::kF32,
                              .out_strides = row_strides(args.out),
                              .lse = static_cast<float*>(args.lse.data),
                              .lse_strides = row_strides(args.lse)};
  const auto ctas = static_cast<unsigned>(std::min(num_rows, kMaxCtas));
  launch(kernel_for(problem.kv.dtype), dim3(ctas), kThreads, static_cast<int>(shared_bytes(problem.kv)), stream,
         parameters);
}

}  // namespace quaver::general
