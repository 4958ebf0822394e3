#include "attention/cpu/emulated.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "attention/cpu/emulated_row.h"
#include "attention/tiles.h"
#include "core/bf16.h"
#include "core/check.h"
#include "kv_cache/page_format.h"

namespace quaver {
namespace {

using emulation::LogitScale;
using emulation::QueryRow;
using emulation::RowResult;
using emulation::RowWalk;

template <class T>
T element(const ConstTensorView& view, int64_t i, int64_t j = 0) {
  return static_cast<const T*>(view.data)[i * view.stride(0) + j * view.stride(1)];  // stride(1) of a vector is 0
}

float scale_or_one(const ConstTensorView& view, int64_t i, int64_t j = 0) {
  return view.given() ? element<float>(view, i, j) : 1.0F;
}

// One kv head of one sequence: its query rows (token * group + head, as the kernels order them) and its splits.
struct HeadTask {
  int64_t sequence = 0;
  int head = 0;
  int64_t first_token = 0;  // of the sequence in q and out
  int64_t kv_len = 0;
  std::vector<QueryRow> rows{};
  std::vector<LogitScale> scales{};  // by row
  tiles::KeyRange keys{};            // that any row sees; what lies outside is never read
  std::vector<tiles::TileSpan> splits{};
  std::vector<std::vector<RowResult>> parts{};  // by split and row
};

class Emulation {
 public:
  Emulation(const AttentionProblem& problem, const EmulationOptions& options, const AttentionArgs& args)
      : problem_(problem), options_(options), args_(args), group_(problem.num_q_heads / problem.kv.num_kv_heads) {}

  void run() {
    std::vector<HeadTask> tasks;
    for (int64_t b = 0; b < args_.seq_lens.dim(0); ++b) {
      for (int head = 0; head < problem_.kv.num_kv_heads; ++head) tasks.push_back(make_task(b, head));
    }
    std::vector<std::pair<HeadTask*, size_t>> items;
    for (HeadTask& task : tasks) {
      for (size_t split = 0; split < task.splits.size(); ++split) items.emplace_back(&task, split);
    }
#pragma omp parallel for schedule(dynamic)
    for (const auto& [task, split] : items) run_split(*task, split);
    for (const HeadTask& task : tasks) combine(task);
  }

 private:
  [[nodiscard]] HeadTask make_task(int64_t sequence, int head) const;
  [[nodiscard]] int64_t span_end(int64_t token, int64_t sequence_end) const;
  [[nodiscard]] LogitScale logit_scale(const HeadTask& task, const QueryRow& row) const;
  [[nodiscard]] std::vector<float> read_query(int64_t token, int q_head) const;
  void cut(HeadTask& task) const;
  void load_tile(const HeadTask& task, int64_t first_key, MmaMatrix& k, MmaMatrix& v) const;
  void run_split(HeadTask& task, size_t split) const;
  void combine(const HeadTask& task) const;
  void write_row(const HeadTask& task, size_t row, RowResult result) const;

  const AttentionProblem& problem_;
  const EmulationOptions& options_;
  const AttentionArgs& args_;
  int group_;
};

std::vector<float> Emulation::read_query(int64_t token, int q_head) const {
  const ConstTensorView& q = args_.q;
  const int64_t offset = token * q.stride(0) + q_head * q.stride(1);
  std::vector<float> row(static_cast<size_t>(problem_.kv.head_dim_k));
  for (size_t d = 0; d < row.size(); ++d) {
    row[d] = q.dtype == DType::kBF16 ? to_float(static_cast<const Bf16*>(q.data)[offset + static_cast<int64_t>(d)])
                                     : static_cast<const float*>(q.data)[offset + static_cast<int64_t>(d)];
  }
  return row;
}

LogitScale Emulation::logit_scale(const HeadTask& task, const QueryRow& row) const {
  const float descale =
      scale_or_one(args_.q_descale, task.sequence, task.head) * scale_or_one(args_.k_descale, task.sequence, task.head);
  const float stored = row.scale * scale_or_one(args_.k_scale, task.head) * descale;
  if (problem_.softcap > 0.0F) {
    return {.to_log2 = args_.softmax_scale / problem_.softcap * stored,
            .cap_log2 = problem_.softcap * emulation::kLog2E};
  }
  return {.to_log2 = args_.softmax_scale * emulation::kLog2E * stored};
}

// One past the last token of the image span of row `token` of q.
int64_t Emulation::span_end(int64_t token, int64_t sequence_end) const {
  int64_t end = token + 1;
  while (end < sequence_end &&
         tiles::span_goes_on(element<int32_t>(args_.span_ids, token), element<int32_t>(args_.span_ids, end))) {
    ++end;
  }
  return end;
}

HeadTask Emulation::make_task(int64_t sequence, int head) const {
  const int64_t first_token = element<int32_t>(args_.query_start, sequence);
  const int64_t q_len = element<int32_t>(args_.query_start, sequence + 1) - first_token;
  HeadTask task{.sequence = sequence,
                .head = head,
                .first_token = first_token,
                .kv_len = element<int32_t>(args_.seq_lens, sequence)};
  const tiles::Mask mask{.causal = problem_.causal, .window = problem_.window};
  for (int64_t token = 0; token < q_len; ++token) {
    const tiles::KeyRange keys =
        args_.span_ids.given()
            ? tiles::visible_keys_in_span(mask, task.kv_len, q_len, token,
                                          span_end(first_token + token, first_token + q_len) - first_token)
            : tiles::visible_keys(mask, task.kv_len, q_len, token);
    for (int in_group = 0; in_group < group_; ++in_group) {
      QueryRow row =
          emulation::quantize_query(read_query(first_token + token, head * group_ + in_group), options_.precision);
      row.keys = keys;
      if (!keys.empty()) {
        task.keys.first = task.keys.empty() ? keys.first : std::min(task.keys.first, keys.first);
        task.keys.last = std::max(task.keys.last, keys.last);
      }
      task.scales.push_back(logit_scale(task, row));
      task.rows.push_back(std::move(row));
    }
  }
  cut(task);
  return task;
}

void Emulation::cut(HeadTask& task) const {
  const int64_t first = task.keys.first / options_.kv_tile;
  const int64_t last = (task.keys.last + options_.kv_tile - 1) / options_.kv_tile;
  if (options_.split_tokens > 0) {
    const int64_t tiles = options_.split_tokens / options_.kv_tile;
    for (int64_t begin = first / tiles * tiles; begin < last; begin += tiles) {
      task.splits.push_back({.first = std::max(begin, first), .last = std::min(begin + tiles, last)});
    }
  } else {
    for (int split = 0; split < options_.num_splits; ++split) {
      task.splits.push_back({.first = first + tiles::even_cut(last - first, options_.num_splits, split),
                             .last = first + tiles::even_cut(last - first, options_.num_splits, split + 1)});
    }
  }
  task.parts.resize(task.splits.size());
}

// Bytes of keys that no row sees (past the end, left of the window, stale) become zeros, as in shared memory.
void Emulation::load_tile(const HeadTask& task, int64_t first_key, MmaMatrix& k, MmaMatrix& v) const {
  const KvLayout& layout = problem_.kv;
  k.clear();
  v.clear();
  const int64_t begin = std::max(first_key, task.keys.first);
  const int64_t end = std::min(first_key + options_.kv_tile, task.keys.last);
  for (int64_t key = begin; key < end; ++key) {
    const int64_t page = element<int32_t>(args_.block_table, task.sequence, key / layout.page_size);
    const auto* bytes = static_cast<const uint8_t*>(args_.pages.data) + page * args_.pages.stride(0);
    const auto slot = static_cast<int>(key % layout.page_size);
    const auto lane = static_cast<int>(key - first_key);
    for (int d = 0; d < layout.head_dim_k; ++d) {
      k.set(d, lane, bytes[page_format::k_offset(layout, task.head, slot, d)]);
    }
    for (int d = 0; d < layout.head_dim_v; ++d) {
      v.set(lane, d, bytes[page_format::v_offset(layout, task.head, slot, d)]);
    }
  }
}

void Emulation::run_split(HeadTask& task, size_t split) const {
  const int tile = options_.kv_tile;
  MmaMatrix k(problem_.kv.head_dim_k, tile);
  MmaMatrix v(tile, problem_.kv.head_dim_v);
  std::vector<RowWalk> walks;
  walks.reserve(task.rows.size());
  for (size_t row = 0; row < task.rows.size(); ++row) {
    walks.emplace_back(task.rows[row], task.scales[row], options_, v.padded_lanes());
  }
  for (int64_t t = task.splits[split].first; t < task.splits[split].last; ++t) {
    load_tile(task, t * tile, k, v);
    for (size_t row = 0; row < walks.size(); ++row) {
      const tiles::KeyRange& keys = task.rows[row].keys;
      if (keys.first < (t + 1) * tile && t * tile < keys.last) walks[row].add_tile(t * tile, k, v);
    }
  }
  for (RowWalk& walk : walks) task.parts[split].push_back(walk.finish());
}

void Emulation::combine(const HeadTask& task) const {
  for (size_t row = 0; row < task.rows.size(); ++row) {
    RowResult total{.out = std::vector<float>(static_cast<size_t>(problem_.kv.head_dim_v), 0.0F)};
    for (const auto& part : task.parts) emulation::add_split(total, part[row]);
    write_row(task, row, std::move(total));
  }
}

void Emulation::write_row(const HeadTask& task, size_t row, RowResult result) const {
  const auto index = static_cast<int>(row);
  const int64_t token = task.first_token + tiles::row_token(index, group_);
  const int64_t q_head = int64_t{task.head} * group_ + tiles::row_head(index, group_);
  const float sink =
      args_.sinks.given() ? element<float>(args_.sinks, q_head) * emulation::kLog2E : emulation::kNegativeInfinity;
  if (sink != emulation::kNegativeInfinity) {
    const RowResult normaliser{.maximum = std::ceil(sink),
                               .sum = std::exp2(sink - std::ceil(sink) + emulation::kPExponent),
                               .out = std::vector<float>(result.out.size(), 0.0F)};
    emulation::add_split(result, normaliser);
  }
  const float value_scale =
      scale_or_one(args_.v_scale, task.head) * scale_or_one(args_.v_descale, task.sequence, task.head);
  const float inverse = result.sum == 0.0F ? 0.0F : value_scale / result.sum;
  const TensorView& out = args_.out;
  const int64_t offset = token * out.stride(0) + q_head * out.stride(1);
  for (size_t d = 0; d < result.out.size(); ++d) {
    const float value = result.out[d] * inverse;
    const int64_t at = offset + static_cast<int64_t>(d);
    if (out.dtype == DType::kBF16) {
      static_cast<Bf16*>(out.data)[at] = to_bf16(value);
    } else {
      static_cast<float*>(out.data)[at] = value;
    }
  }
  if (!args_.lse.given()) return;
  static_cast<float*>(args_.lse.data)[token * args_.lse.stride(0) + q_head * args_.lse.stride(1)] =
      result.sum == 0.0F ? emulation::kNegativeInfinity
                         : (std::log2(result.sum) + result.maximum - emulation::kPExponent) * emulation::kLn2;
}

}  // namespace

void attention_emulated(const AttentionProblem& problem, const EmulationOptions& options, const AttentionArgs& args) {
  check(problem.kv.dtype == KvDtype::kE4M3, "kv dtype ", kv_dtype_name(problem.kv.dtype),
        ": expected fp8, the emulation is of the FP8 kernels");
  check(options.precision == Precision::kSingle || options.precision == Precision::kSplit, "precision ",
        precision_name(options.precision), ": expected single or split");
  check(options.kv_tile > 0 && options.kv_tile % kMmaDepth == 0, "kv_tile ", options.kv_tile,
        ": expected a positive multiple of 32");
  check(options.split_tokens >= 0 && options.split_tokens % options.kv_tile == 0, "split_tokens ", options.split_tokens,
        ": expected a multiple of kv_tile ", options.kv_tile);
  check(options.num_splits > 0, "num_splits ", options.num_splits, ": expected > 0");
  Emulation(problem, options, args).run();
}

void attention_emulated(const AttentionProblem& problem, const AttentionPlan& plan, const AttentionArgs& args) {
  const EmulationOptions options{.precision = plan.precision,
                                 .kv_tile = plan.kv_tile,
                                 .promote_qk = plan.promote_qk,
                                 .split_tokens = plan.split_tokens};
  attention_emulated(problem, options, args);
}

}  // namespace quaver
