#include "attention/decode_fp8/launch.h"

#include <bit>
#include <numbers>

#include "attention/combine/combine.h"
#include "attention/decode_fp8/instance.h"
#include "attention/device_views.h"
#include "attention/tiles.h"
#include "core/with_value.h"

namespace quaver::decode_fp8 {
namespace {

/// rows * head_dim above which one CTA takes longer to add up the parts of an item than a second kernel does.
constexpr int kMaxInKernelElements = 2048;

/// Least units of a piece. One tile a CTA ends soonest (d = 128 at kv 1,024: 7.0 -> 6.1 us), but where the last CTA has
/// to add up twice as many parts of 64 tokens alone, two do (d = 256: 8.6 -> 8.2 us).
int min_piece_units(const AttentionPlan& plan, bool combine_in_kernel) {
  return combine_in_kernel && plan.kv_tile == 64 ? 2 : 1;
}

/// Calls `visit(instance)` for the kernel of a head dim that takes `rows` query rows.
template <class Visit>
void with_instance(int head_dim, int rows, Visit&& visit) {
  with_value<64, 96, 128, 192, 256, 512>(head_dim, [&](auto dim) {
    constexpr int kDim = decltype(dim)::value;
    if (rows <= 4) {
      visit(Instance<kDim, 4>{});
    } else if (rows <= 8) {
      visit(Instance<kDim, 8>{});
    } else {
      visit(Instance<kDim, 32>{});
    }
  });
}

schedule::ScheduleShape schedule_shape(const AttentionProblem& problem, const AttentionPlan& plan, int max_rows,
                                       bool combine_in_kernel) {
  return {.num_kv_heads = problem.kv.num_kv_heads,
          .group = problem.num_q_heads / problem.kv.num_kv_heads,
          .max_rows = max_rows,
          .page_size = problem.kv.page_size,
          .kv_tile = plan.kv_tile,
          .mask = {.causal = problem.causal, .window = problem.window},
          .min_piece_units = min_piece_units(plan, combine_in_kernel),
          .fixed_splits = plan.split_tokens > 0};
}

}  // namespace

DecodeFp8::DecodeFp8(const AttentionProblem& problem, const AttentionPlan& plan, const DeviceInfo& device,
                     const Limits& limits)
    : problem_(problem), plan_(plan) {
  check_as(ErrorKind::kUnsupported, device.arch == 90, "compute capability ", device.arch, " of ", device.name,
           ": expected 90 (the kernel uses WGMMA)");
  const int head_dim = problem.kv.head_dim_k;
  check(plan.kv_tile == tiles::kv_tile(tiles::KernelFamily::kDecode, head_dim), "kv_tile ", plan.kv_tile,
        ": expected the decode kernel's ", tiles::kv_tile(tiles::KernelFamily::kDecode, head_dim));
  check(plan.split_tokens == 0 || plan.split_tokens == tiles::kFixedSplitTokens, "split_tokens ", plan.split_tokens,
        ": expected 0 or ", tiles::kFixedSplitTokens);
  max_rows_ = problem.num_q_heads / problem.kv.num_kv_heads * problem.max_query_len;
  check(max_rows_ <= tiles::kMaxDecodeRows, "query rows a kv head ", max_rows_, ": expected at most ",
        tiles::kMaxDecodeRows);
  int ctas_per_sm = 0;
  with_instance(head_dim, max_rows_, [&](auto instance) { ctas_per_sm = decltype(instance)::prepare(); });
  check_as(ErrorKind::kUnsupported, ctas_per_sm > 0, "shared memory of ", device.name,
           ": expected enough for one CTA of the decode kernel");
  grid_ = ctas_per_sm * device.num_sms;
  const bool fixed_splits = plan.split_tokens > 0;
  const bool small_parts = max_rows_ * head_dim <= kMaxInKernelElements;
  combine_in_kernel_ = fixed_splits || small_parts;
  const int max_rounds = small_parts ? schedule::kMaxRounds : 1;  // more parts of 32 rows cost more than they balance
  // A sequence of n > 4,096 keys touches at most n / 4096 + 2 <= 3 n / 4096 splits (its window may begin inside one).
  const int64_t fixed_slots =
      fixed_splits ? 3 * (limits.max_kv_tokens / tiles::kFixedSplitTokens + 1) * problem.kv.num_kv_heads : 0;
  const int64_t slots = fixed_splits ? fixed_slots : 2 * int64_t{grid_} * max_rounds;
  work_ = std::make_unique<schedule::WorkList>(schedule_shape(problem, plan, max_rows_, combine_in_kernel_),
                                               limits.max_sequences, grid_, max_rounds, fixed_slots);
  partial_out_ = DeviceBuffer<float>(slots * max_rows_ * head_dim);
  partial_max_sum_ = DeviceBuffer<float2>(slots * max_rows_);
  arrived_ = DeviceBuffer<int>(slots);
}

void DecodeFp8::schedule(const AttentionArgs& args, cudaStream_t stream) {
  work_->schedule({.lengths = {.seq_lens = pointer<int32_t>(args.seq_lens),
                               .query_start = pointer<int32_t>(args.query_start),
                               .num_sequences = static_cast<int>(args.seq_lens.dim(0))},
                   .block_table = pointer<int32_t>(args.block_table),
                   .block_table_stride = args.block_table.strides[0]},
                  max_rows(args), stream);
}

void DecodeFp8::run(const AttentionArgs& args, cudaStream_t stream, InFront in_front) {
  constexpr auto kLog2E = std::numbers::log2e_v<float>;
  const int head_dim = problem_.kv.head_dim_k;
  schedule::ScheduleShape shape = work_->shape();
  shape.max_rows = max_rows(args);
  const Output output = output_rows(args, shape.group);
  const Partials partials{.out = partial_out_.data(),
                          .max_sum = partial_max_sum_.data(),
                          .arrived = arrived_.data(),
                          .max_rows = max_rows_};
  const Parameters parameters{.q = pointer<__nv_bfloat16>(args.q),
                              .q_strides = row_strides(args.q),
                              .pages = pointer<uint8_t>(args.pages),
                              .page_stride = args.pages.strides[0],
                              .block_table = pointer<int32_t>(args.block_table),
                              .block_table_stride = args.block_table.strides[0],
                              .lengths = {.seq_lens = pointer<int32_t>(args.seq_lens),
                                          .query_start = pointer<int32_t>(args.query_start),
                                          .num_sequences = static_cast<int>(args.seq_lens.dim(0))},
                              .layout = problem_.kv,
                              .page_shift = std::countr_zero(static_cast<unsigned>(problem_.kv.page_size)),
                              .k_scale = pointer<float>(args.k_scale),
                              .q_descale = descale(args.q_descale),
                              .k_descale = descale(args.k_descale),
                              .scale_log2 = args.softmax_scale * kLog2E,
                              .softcap_log2 = problem_.softcap * kLog2E,
                              .low_part_mask = plan_.precision == Precision::kSingle ? 0U : ~0U,
                              .combine_in_kernel = combine_in_kernel_,
                              .loads_early = in_front == InFront::kNewKeys,
                              .shape = shape,
                              .work = work_->view(),
                              .partials = partials,
                              .output = output};
  with_instance(head_dim, max_rows_, [&](auto instance) { decltype(instance)::launch(parameters, grid_, stream); });
  if (!combine_in_kernel_)
    combine::run_combine(head_dim, partials, output, work_->view().cuts, max_rows_, grid_, stream);
}

}  // namespace quaver::decode_fp8
