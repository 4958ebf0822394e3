#include "attention/prefill_fp8/launch.h"

#include <bit>
#include <numbers>

#include "attention/combine/combine.h"
#include "attention/device_views.h"
#include "attention/prefill_fp8/instance.h"
#include "attention/prefill_fp8/traits.h"
#include "attention/schedule/span_ends.h"
#include "core/with_value.h"

namespace quaver::prefill_fp8 {
namespace {

/// Cut items that the combine kernel adds up at a time, each with 24 to 64 CTAs. It is launched whether any item is cut
/// or not, so the grid is no larger than what ends at once when there is nothing to do.
constexpr int kItemsAtOnce = 8;

/// Calls action(Instance<…>{}).
template <class Action>
void with_instance(int head_dim, Precision precision, Action action) {
  with_value<64, 96, 128, 192, 256, 512>(head_dim, [&](auto dim) {
    if (precision == Precision::kSplit) {
      action(Instance<decltype(dim)::value, true>{});
    } else {
      action(Instance<decltype(dim)::value, false>{});
    }
  });
}

}  // namespace

PrefillFp8::PrefillFp8(const AttentionProblem& problem, const AttentionPlan& plan, const DeviceInfo& device,
                       int64_t max_sequences, int64_t max_tokens)
    : problem_(problem), plan_(plan) {
  check_as(ErrorKind::kUnsupported, device.arch == 90, "compute capability ", device.arch, " of ", device.name,
           ": expected 90 (the kernel uses WGMMA)");
  check(plan.precision == Precision::kSingle || plan.precision == Precision::kSplit, "precision ",
        precision_name(plan.precision), ": expected single or split");
  const int head_dim = problem.kv.head_dim_k;
  check(plan.kv_tile == tiles::kv_tile(tiles::KernelFamily::kPrefill, head_dim), "kv_tile ", plan.kv_tile,
        ": expected the prefill kernel's ", tiles::kv_tile(tiles::KernelFamily::kPrefill, head_dim));
  int ctas_per_sm = 0;
  with_instance(head_dim, plan.precision, [&](auto instance) {
    ctas_per_sm = instance.prepare();
    block_rows_ = decltype(instance)::Traits::kRows;
  });
  check_as(ErrorKind::kUnsupported, ctas_per_sm > 0, "shared memory of ", device.name,
           ": expected enough for one CTA of the prefill kernel");
  grid_ = ctas_per_sm * device.num_sms;
  // The bits of a row must not depend on what else is in the step: no cuts then.
  const int cut_grid = problem.batch_invariant ? 0 : grid_;
  work_ = std::make_unique<schedule::BlockList>(
      schedule::BlockShape{.group = problem.num_q_heads / problem.kv.num_kv_heads,
                           .block_rows = block_rows_,
                           .kv_tile = plan.kv_tile,
                           .mask = {.causal = problem.causal, .window = problem.window}},
      schedule::BlockListLimits{.max_sequences = max_sequences,
                                .max_query_len = problem.max_query_len,
                                .num_kv_heads = problem.kv.num_kv_heads,
                                .cut_grid = cut_grid});
  const int64_t rows = schedule::max_part_slots(cut_grid) * block_rows_;
  partial_out_ = DeviceBuffer<float>(rows * head_dim);
  partial_max_sum_ = DeviceBuffer<float2>(rows);
  if (problem.bidirectional_spans) span_ends_ = DeviceBuffer<int32_t>(max_tokens);
}

void PrefillFp8::schedule(const AttentionArgs& args, int min_rows, cudaStream_t stream) {
  const schedule::SequenceLengths lengths{.seq_lens = pointer<int32_t>(args.seq_lens),
                                          .query_start = pointer<int32_t>(args.query_start),
                                          .num_sequences = static_cast<int>(args.seq_lens.dim(0))};
  const int32_t* ends = nullptr;
  if (args.span_ids.given()) {
    check(args.span_ids.dim(0) <= span_ends_.size(), "span_ids of ", args.span_ids.dim(0), " tokens: expected at most ",
          span_ends_.size());
    ends = span_ends_.data();
    schedule::find_span_ends({.span_ids = pointer<int32_t>(args.span_ids),
                              .num_tokens = static_cast<int>(args.span_ids.dim(0)),
                              .lengths = lengths,
                              .ends = span_ends_.data()},
                             stream);
  }
  work_->schedule(lengths, min_rows, ends, stream);
}

void PrefillFp8::run(const AttentionArgs& args, cudaStream_t stream) {
  constexpr auto kLog2E = std::numbers::log2e_v<float>;
  const schedule::BlockShape& shape = work_->shape();
  const Output output = output_rows(args, shape.group);
  const Partials partials{
      .out = partial_out_.data(), .max_sum = partial_max_sum_.data(), .arrived = nullptr, .max_rows = block_rows_};
  const Parameters parameters{.q = pointer<__nv_bfloat16>(args.q),
                              .q_strides = row_strides(args.q),
                              .pages = pointer<uint8_t>(args.pages),
                              .page_stride = args.pages.strides[0],
                              .block_table = pointer<int32_t>(args.block_table),
                              .block_table_stride = args.block_table.strides[0],
                              .layout = problem_.kv,
                              .page_shift = std::countr_zero(static_cast<unsigned>(problem_.kv.page_size)),
                              .k_scale = pointer<float>(args.k_scale),
                              .q_descale = descale(args.q_descale),
                              .k_descale = descale(args.k_descale),
                              .scale_log2 = args.softmax_scale * kLog2E,
                              .softcap_log2 = problem_.softcap * kLog2E,
                              .softcap_inward = problem_.softcap > 0.0F ? 2.0F / problem_.softcap : 0.0F,
                              .mask = shape.mask,
                              .span_ends = args.span_ids.given() ? span_ends_.data() : nullptr,
                              .group = shape.group,
                              .work = work_->view(),
                              .output = output,
                              .partials = partials};
  with_instance(problem_.kv.head_dim_k, plan_.precision,
                [&](auto instance) { instance.launch(parameters, grid_, stream); });
  if (problem_.batch_invariant) return;
  combine::run_combine(problem_.kv.head_dim_k, partials, output, work_->cuts(), block_rows_, kItemsAtOnce, stream);
}

}  // namespace quaver::prefill_fp8
