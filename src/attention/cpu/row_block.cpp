#include "attention/cpu/row_block.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>

#include "attention/cpu/block_product.h"
#include "attention/cpu/cpu_attention.h"
#include "attention/cpu/kv_panels.h"
#include "core/bf16.h"
#include "core/simd.h"

namespace quaver {
namespace {

constexpr float kLog2e = std::numbers::log2e_v<float>;
constexpr float kNoKey = -1e30F;  // maximum of a row that has seen no key; finite, so that a NaN logit stays NaN
constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <class T>
const T& at(const ConstTensorView& view, int64_t i, int64_t j = 0) {
  return static_cast<const T*>(view.data)[i * view.strides[0] + (view.rank > 1 ? j * view.strides[1] : 0)];
}

float scale_or_one(const ConstTensorView& view, int64_t i, int64_t j = 0) {
  return view.given() ? at<float>(view, i, j) : 1.0F;
}

// 2^exponent for an integer exponent <= 0; 0 below -126 and for NaN (of two infinite maxima; the sum is NaN by then).
float power_of_two(float exponent) {
  if (!(exponent >= -126.0F)) return 0.0F;
  return std::bit_cast<float>(static_cast<uint32_t>(static_cast<int32_t>(exponent) + 127) << 23);
}

}  // namespace

CpuCall::CpuCall(const AttentionProblem& the_problem, const AttentionArgs& the_args)
    : problem(the_problem),
      args(the_args),
      group(the_problem.num_q_heads / the_problem.kv.num_kv_heads),
      padded_v((int64_t{the_problem.kv.head_dim_v} + kPanel - 1) / kPanel * kPanel) {
  if (!problem.bidirectional_spans || !args.span_ids.given()) return;
  span_end.resize(static_cast<size_t>(args.q.dim(0)));
  for (int64_t b = 0; b < args.seq_lens.dim(0); ++b) {
    const int64_t end = query_first(b) + query_len(b);
    for (int64_t t = end - 1; t >= query_first(b); --t) {
      const bool goes_on =
          t + 1 < end && tiles::span_goes_on(at<int32_t>(args.span_ids, t), at<int32_t>(args.span_ids, t + 1));
      span_end[static_cast<size_t>(t)] = goes_on ? span_end[static_cast<size_t>(t + 1)] : t + 1;
    }
  }
}

int64_t CpuCall::query_first(int64_t sequence) const {
  return at<int32_t>(args.query_start, sequence);
}

int64_t CpuCall::query_len(int64_t sequence) const {
  return query_first(sequence + 1) - query_first(sequence);
}

int64_t CpuCall::kv_len(int64_t sequence) const {
  return at<int32_t>(args.seq_lens, sequence);
}

tiles::KeyRange CpuCall::visible(int64_t sequence, int64_t token) const {
  const int64_t kv = kv_len(sequence);
  const int64_t q = query_len(sequence);
  const tiles::Mask mask{.causal = problem.causal, .window = problem.window};
  if (span_end.empty()) return tiles::visible_keys(mask, kv, q, token);
  const int64_t first = query_first(sequence);
  return tiles::visible_keys_in_span(mask, kv, q, token, span_end[static_cast<size_t>(first + token)] - first);
}

void RowState::reset(int64_t rows, int64_t width) {
  o.assign(static_cast<size_t>(rows * width), 0.0F);
  sum.assign(static_cast<size_t>(rows), 0.0F);
  maximum.assign(static_cast<size_t>(rows), kNoKey);
}

void RowState::fold(const RowState& other, int64_t rows, int64_t width) {
  for (int64_t r = 0; r < rows; ++r) {
    const auto i = static_cast<size_t>(r);
    const float highest = std::max(maximum[i], other.maximum[i]);
    const float mine = power_of_two(maximum[i] - highest);
    const float theirs = power_of_two(other.maximum[i] - highest);
    maximum[i] = highest;
    sum[i] = sum[i] * mine + other.sum[i] * theirs;
    float* to = o.data() + r * width;
    const float* from = other.o.data() + r * width;
    for (int64_t d = 0; d < width; ++d) to[d] = to[d] * mine + from[d] * theirs;
  }
}

RowBlock::RowBlock(const CpuCall& call, int64_t max_rows) : call_(call) {
  const auto rows = static_cast<size_t>(max_rows);
  q_.resize(rows * static_cast<size_t>(call.problem.kv.head_dim_k));
  k_.resize(static_cast<size_t>(kCpuTile) * static_cast<size_t>(call.problem.kv.head_dim_k));
  v_.resize(static_cast<size_t>(kCpuTile) * static_cast<size_t>(call.padded_v));
  s_.resize(rows * kCpuTile);
  rescale_.resize(rows);
  range_.resize(rows);
}

void RowBlock::begin(const RowBlockItem& item) {
  item_ = item;
  rows_ = call_.rows(item);
  total_.reset(rows_, call_.padded_v);
  for (int64_t r = 0; r < rows_; ++r) {
    range_[static_cast<size_t>(r)] = call_.visible(item.sequence, item.token_first + r / call_.group);
  }
  load_queries();
}

void RowBlock::load_queries() {
  const AttentionArgs& args = call_.args;
  const int dims = call_.problem.kv.head_dim_k;
  float factor = args.softmax_scale * scale_or_one(args.k_scale, item_.head) *
                 scale_or_one(args.q_descale, item_.sequence, item_.head) *
                 scale_or_one(args.k_descale, item_.sequence, item_.head);
  if (call_.problem.softcap == 0.0F) factor *= kLog2e;  // logits in log2 units; a softcap needs natural ones first
  for (int64_t r = 0; r < rows_; ++r) {
    const int64_t token = call_.query_first(item_.sequence) + item_.token_first + r / call_.group;
    const int64_t offset =
        token * args.q.strides[0] + (int64_t{item_.head} * call_.group + r % call_.group) * args.q.strides[1];
    float* to = q_.data() + r * dims;
    if (args.q.dtype == DType::kBF16) {
      const auto* from = static_cast<const Bf16*>(args.q.data) + offset;
      for (int d = 0; d < dims; ++d) to[d] = to_float(from[d]) * factor;
    } else {
      const auto* from = static_cast<const float*>(args.q.data) + offset;
      for (int d = 0; d < dims; ++d) to[d] = from[d] * factor;
    }
  }
}

void RowBlock::add_splits(int64_t split_first, int64_t split_last, RowState& total) {
  for (int64_t split = split_first; split < split_last; ++split) {
    const int64_t begin = std::max(split * kCpuSplitTokens, item_.keys.first / kCpuTile * kCpuTile);
    const int64_t end = std::min((split + 1) * kCpuSplitTokens, item_.keys.last);
    split_.reset(rows_, call_.padded_v);
    for (int64_t key = begin; key < end; key += kCpuTile) add_tile(key);
    total.fold(split_, rows_, call_.padded_v);
  }
}

void RowBlock::load_tile(int64_t tile_key, int first_panel, int last_panel) {
  const AttentionArgs& args = call_.args;
  const KvLayout& kv = call_.problem.kv;
  for (int panel = first_panel; panel < last_panel; ++panel) {
    const int64_t key = tile_key + int64_t{panel} * kPanel;
    const auto page_id = at<int32_t>(args.block_table, item_.sequence, key / kv.page_size);
    const std::byte* page = static_cast<const std::byte*>(args.pages.data) + page_id * args.pages.strides[0];
    const int token = static_cast<int>(key % kv.page_size);
    load_k_panel(kv, page, item_.head, token, k_.data() + int64_t{panel} * kPanel * kv.head_dim_k);
    const VRows where{.token = token,
                      .valid_first = static_cast<int>(std::max<int64_t>(item_.keys.first - key, 0)),
                      .valid_last = static_cast<int>(std::min<int64_t>(item_.keys.last - key, kPanel)),
                      .row = panel * kPanel,
                      .rows = kCpuTile};
    load_v_rows(kv, page, item_.head, where, v_.data());
  }
}

void RowBlock::softmax_row(int64_t row, int64_t tile_key, int first_panel, int last_panel) {
  const auto i = static_cast<size_t>(row);
  float* s = s_.data() + row * kCpuTile;
  const int begin = first_panel * kPanel;
  const int end = last_panel * kPanel;
  const int first = static_cast<int>(std::clamp<int64_t>(range_[i].first - tile_key, 0, kCpuTile));
  const int last = static_cast<int>(std::clamp<int64_t>(range_[i].last - tile_key, 0, kCpuTile));
  const bool masked = begin < first || last < end;
  const float cap = call_.problem.softcap;

  simd::F32x8 highest = simd::broadcast(-kInfinity);
  for (int j = begin; j < end; j += 8) {
    auto logit = simd::load<simd::F32x8>(s + j);
    if (cap != 0.0F) logit = simd::tanh(logit / cap) * (cap * kLog2e);
    if (masked) {
      const simd::I32x8 key = simd::I32x8{0, 1, 2, 3, 4, 5, 6, 7} + j;
      logit = simd::select((key >= first) & (key < last), logit, simd::broadcast(-kInfinity));
    }
    highest = simd::max(logit, highest);
    simd::store(s + j, logit);
  }
  const float maximum = std::max(split_.maximum[i], std::ceil(simd::max_lanes(highest)));
  simd::F32x8 sum = simd::broadcast(0.0F);
  for (int j = begin; j < end; j += 8) {
    const simd::F32x8 weight = simd::exp2(simd::load<simd::F32x8>(s + j) - maximum);
    sum += weight;
    simd::store(s + j, weight);
  }
  rescale_[i] = power_of_two(split_.maximum[i] - maximum);
  split_.maximum[i] = maximum;
  split_.sum[i] = split_.sum[i] * rescale_[i] + simd::sum_lanes(sum);
}

void RowBlock::add_tile(int64_t tile_key) {
  const int dims = call_.problem.kv.head_dim_k;
  const int first_panel = static_cast<int>(std::max<int64_t>(item_.keys.first - tile_key, 0) / kPanel);
  const auto visible_end = std::min<int64_t>(item_.keys.last - tile_key, kCpuTile);
  const int last_panel = static_cast<int>((visible_end + kPanel - 1) / kPanel);
  load_tile(tile_key, first_panel, last_panel);
  multiply({.a = q_.data(),
            .a_stride = dims,
            .b = k_.data() + int64_t{first_panel} * kPanel * dims,
            .panel_stride = int64_t{kPanel} * dims,
            .num_panels = last_panel - first_panel,
            .depth = dims,
            .c = s_.data() + int64_t{first_panel} * kPanel,
            .c_stride = kCpuTile},
           rows_);
  for (int64_t r = 0; r < rows_; ++r) softmax_row(r, tile_key, first_panel, last_panel);
  multiply({.a = s_.data() + int64_t{first_panel} * kPanel,
            .a_stride = kCpuTile,
            .b = v_.data() + int64_t{first_panel} * kPanel * kPanel,
            .panel_stride = int64_t{kCpuTile} * kPanel,
            .num_panels = static_cast<int>(call_.padded_v / kPanel),
            .depth = (last_panel - first_panel) * kPanel,
            .c = split_.o.data(),
            .c_stride = call_.padded_v,
            .scale = rescale_.data()},
           rows_);
}

void finish(const CpuCall& call, const RowBlockItem& item, RowState& total) {
  const AttentionArgs& args = call.args;
  const float v_factor = scale_or_one(args.v_scale, item.head) * scale_or_one(args.v_descale, item.sequence, item.head);
  for (int64_t r = 0; r < call.rows(item); ++r) {
    const auto i = static_cast<size_t>(r);
    const int64_t token = call.query_first(item.sequence) + item.token_first + r / call.group;
    const int64_t head = int64_t{item.head} * call.group + r % call.group;
    float keep = 1.0F;  // what the sink's maximum leaves of the row's weights
    if (args.sinks.given()) {
      const float sink = at<float>(args.sinks, head) * kLog2e;
      const float highest = std::max(total.maximum[i], std::ceil(sink));
      keep = power_of_two(total.maximum[i] - highest);
      total.maximum[i] = highest;
      total.sum[i] = total.sum[i] * keep + std::exp2(sink - highest);
    }
    const bool nothing = total.sum[i] == 0.0F;
    const float factor = nothing ? 0.0F : keep / total.sum[i] * v_factor;
    const float* o = total.o.data() + r * call.padded_v;
    const int64_t offset = token * args.out.strides[0] + head * args.out.strides[1];
    const int dims = call.problem.kv.head_dim_v;
    if (args.out.dtype == DType::kBF16) {
      auto* to = static_cast<Bf16*>(args.out.data) + offset;
      for (int d = 0; d < dims; ++d) to[d] = to_bf16(o[d] * factor);
    } else {
      auto* to = static_cast<float*>(args.out.data) + offset;
      for (int d = 0; d < dims; ++d) to[d] = o[d] * factor;
    }
    if (!args.lse.given()) continue;
    const double lse = double{total.maximum[i]} * std::numbers::ln2 + std::log(double{total.sum[i]});
    static_cast<float*>(args.lse.data)[token * args.lse.strides[0] + head * args.lse.strides[1]] =
        nothing ? -kInfinity : static_cast<float>(lse);
  }
}

}  // namespace quaver
