#include "gemm/packed_fp8/launch.h"

#include "core/with_value.h"
#include "gemm/packed_fp8/instance.h"

namespace quaver::packed_fp8 {
namespace {

/// Calls action(Instance) for the kernel of a tile.
template <class Action>
void with_instance(int row_tile, int token_tile, Scaling scaling, const Action& action) {
  if (row_tile > kBlockRows) {
    with_value<144, 176>(row_tile, [&](auto rows) {
      action(Instance<kHighTileTokens, Scaling::kOuter, Output::kRows, decltype(rows)::value>{});
    });
  } else if (scaling == Scaling::kBlock) {
    with_value<8, 16, 32, 64, 128>(token_tile,
                                   [&](auto tokens) { action(Instance<decltype(tokens)::value, Scaling::kBlock>{}); });
  } else {
    with_value<8, 16, 32, 64, 128, 192>(
        token_tile, [&](auto tokens) { action(Instance<decltype(tokens)::value, Scaling::kOuter>{}); });
  }
}

/// The same with the gate.
template <class Action>
void with_geglu_instance(int row_tile, int token_tile, const Action& action) {
  if (row_tile > kBlockRows) {
    action(Instance<kHighTileTokens, Scaling::kOuter, Output::kGeglu, kHighTiles.back()>{});
    return;
  }
  with_value<8, 16, 32, 64, 128, 192>(
      token_tile, [&](auto tokens) { action(Instance<decltype(tokens)::value, Scaling::kOuter, Output::kGeglu>{}); });
}

void check_operand(const void* packed, const float* scales, const char* name) {
  check(packed != nullptr && scales != nullptr, name, ": expected a packed matrix and scales");
  check(reinterpret_cast<uintptr_t>(packed) % 16 == 0, name, ": expected 16-byte alignment");
}

void check_operands(const PackedWeight& weight, const PackedTokens& tokens) {
  check_operand(weight.packed, weight.scales, "weight");
  check_operand(tokens.packed, tokens.scales, "tokens");
  if (weight.scaling == Scaling::kBlock) {
    check(tokens.scale_stride % 4 == 0 && tokens.scale_stride >= ceil_divide(tokens.m, kGroupRows) * kGroupRows,
          "token scale stride ", tokens.scale_stride, ": expected a multiple of 4, at least ", tokens.m,
          " rounded up to 8");
    check(reinterpret_cast<uintptr_t>(tokens.scales) % 16 == 0, "token scales: expected 16-byte alignment");
  } else {
    check(tokens.scale_stride == 0 || tokens.scale_stride == 1, "token scale stride ", tokens.scale_stride,
          ": expected 0 (one for all) or 1");
  }
}

void check_output(const TensorView& out, int64_t m, int64_t n) {
  check(out.given() && out.rank == 2 && out.dim(0) == m && out.dim(1) == n && out.stride(1) == 1 && out.stride(0) >= n,
        "out ", to_string(out), ": expected [", m, ", ", n, "] with dense rows");
}

bool has_aligned_rows(const TensorView& out) {
  return out.stride(0) % 8 == 0 && reinterpret_cast<uintptr_t>(out.data) % 16 == 0;
}

/// All but the output.
Parameters operands(const GemmPlan& plan, const PackedWeight& weight, const PackedTokens& tokens,
                    const Workspace& workspace) {
  return {.weights = weight.packed,
          .weight_scales = weight.scales,
          .tokens = tokens.packed,
          .token_scales = tokens.scales,
          .token_scale_stride = tokens.scale_stride,
          .m = static_cast<int>(tokens.m),
          .n = static_cast<int>(weight.n),
          .partial_sums = workspace.partial_sums(),
          .arrivals = workspace.arrivals(),
          .grid = plan.grid,
          .num_clusters = plan.num_clusters};
}

}  // namespace

PackedGemm::PackedGemm(const DeviceInfo& device) {
  check_as(ErrorKind::kUnsupported, device.arch == 90, "compute capability ", device.arch, " of ", device.name,
           ": expected 90 (the kernel uses WGMMA)");
  const auto prepare = [](auto instance) { decltype(instance)::prepare(); };
  for (const int tokens : kTokenTiles) {
    with_instance(kBlockRows, tokens, Scaling::kOuter, prepare);
    with_geglu_instance(kBlockRows, tokens, prepare);
    if (tokens <= 128) with_instance(kBlockRows, tokens, Scaling::kBlock, prepare);
  }
  for (const int rows : kHighTiles) with_instance(rows, kHighTileTokens, Scaling::kOuter, prepare);
  with_geglu_instance(kHighTiles.back(), kHighTileTokens, prepare);
  // All kernels take a whole SM, so what fits is the same for each of them.
  for (int cluster = 1; cluster <= kMaxCluster; ++cluster) {
    max_clusters_.at(static_cast<size_t>(cluster)) = Instance<128, Scaling::kOuter>::max_clusters(cluster);
  }
  check_as(ErrorKind::kUnsupported, max_clusters_[1] > 0, "shared memory of ", device.name,
           ": expected enough for one CTA of the GEMM kernel");
}

GemmPlan PackedGemm::plan(const GemmShape& shape, Scaling scaling, Output output, SumOrder order) const {
  return plan_gemm(shape, scaling, max_clusters_, output, order);
}

void PackedGemm::run(const PackedWeight& weight, const PackedTokens& tokens, const TensorView& out,
                     const Workspace& workspace, cudaStream_t stream, SumOrder order) const {
  check(tokens.m >= 0, "tokens ", tokens.m, ": expected >= 0");
  if (tokens.m == 0) return;
  const GemmShape shape{.m = tokens.m, .n = weight.n, .k = weight.k};
  run(plan(shape, weight.scaling, Output::kRows, order), weight, tokens, out, workspace, stream);
}

void PackedGemm::run(const GemmPlan& plan, const PackedWeight& weight, const PackedTokens& tokens,
                     const TensorView& out, const Workspace& workspace, cudaStream_t stream) const {
  check_operands(weight, tokens);
  check_output(out, tokens.m, weight.n);
  check(out.dtype == DType::kBF16 || out.dtype == DType::kF32, "out dtype ", dtype_name(out.dtype),
        ": expected bf16 or f32");
  Parameters parameters = operands(plan, weight, tokens, workspace);
  parameters.out = out.data;
  parameters.out_stride = out.stride(0);
  parameters.out_f32 = out.dtype == DType::kF32;
  parameters.aligned_rows = !parameters.out_f32 && has_aligned_rows(out);
  with_instance(plan.grid.row_tile, plan.grid.token_tile, weight.scaling,
                [&](auto instance) { decltype(instance)::launch(parameters, stream); });
}

void PackedGemm::run_geglu(const PackedWeight& weight, const PackedTokens& tokens, const TensorView& out,
                           const Workspace& workspace, cudaStream_t stream) const {
  check(tokens.m >= 0, "tokens ", tokens.m, ": expected >= 0");
  if (tokens.m == 0) return;
  const GemmShape shape{.m = tokens.m, .n = weight.n, .k = weight.k};
  run_geglu(plan(shape, weight.scaling, Output::kGeglu), weight, tokens, out, workspace, stream);
}

void PackedGemm::run_geglu(const GemmPlan& plan, const PackedWeight& weight, const PackedTokens& tokens,
                           const TensorView& out, const Workspace& workspace, cudaStream_t stream) const {
  check(weight.scaling == Scaling::kOuter && weight.n % 16 == 0, "weight of ", weight.n,
        " rows: expected a multiple of 16, gate and up in turn, with a scale per row");
  check_operands(weight, tokens);
  check_output(out, tokens.m, weight.n / 2);
  check(out.dtype == DType::kBF16 && has_aligned_rows(out), "out ", to_string(out),
        ": expected bf16 rows at multiples of 16 bytes");
  Parameters parameters = operands(plan, weight, tokens, workspace);
  parameters.out = out.data;
  parameters.out_stride = out.stride(0);
  parameters.aligned_rows = true;
  with_geglu_instance(plan.grid.row_tile, plan.grid.token_tile,
                      [&](auto instance) { decltype(instance)::launch(parameters, stream); });
}

}  // namespace quaver::packed_fp8
