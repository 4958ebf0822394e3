#include "testing/cases.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "core/e4m3.h"
#include "kv_cache/page_format.h"
#include "testing/metric.h"
#include "testing/random.h"

namespace quaver::testing {
namespace {

constexpr int kUnusedPages = 3;  ///< pages of the pool that no sequence owns
constexpr int kTableTail = 2;    ///< entries of -1 after the longest sequence

/// Quantises `value` into the page at `offset` and returns what the cache then holds.
float store(const KvLayout& layout, uint8_t* page, int64_t offset, float value, float scale) {
  if (layout.dtype == KvDtype::kE4M3) {
    page[offset] = e4m3_quantize(value, 1.0F / scale);
    return e4m3_decode(page[offset]) * scale;
  }
  const Bf16 stored = to_bf16(value / scale);
  std::memcpy(page + offset, &stored, sizeof(stored));
  return to_float(stored) * scale;
}

std::vector<int32_t> random_span_ids(Random& random, int64_t tokens, int span_len) {
  std::vector<int32_t> ids;
  int32_t id = 0;
  while (static_cast<int64_t>(ids.size()) < tokens) {
    const auto text = static_cast<size_t>(random.below(span_len) + 1);
    const auto image = static_cast<size_t>(random.below(span_len) + 1);
    ids.insert(ids.end(), text, -1);
    ids.insert(ids.end(), image, id++);
  }
  ids.resize(static_cast<size_t>(tokens));
  return ids;
}

std::vector<float> random_scales(Random& random, int64_t count, bool given) {
  std::vector<float> scales(given ? static_cast<size_t>(count) : 0);
  for (float& scale : scales) scale = static_cast<float>(0.5 + random.uniform());
  return scales;
}

}  // namespace

std::vector<int32_t> ragged_lengths() {
  return {0, 1, 2, 15, 16, 17, 31, 61, 63, 64, 65, 127, 128, 129, 251, 307};
}

Case::Case(const CaseSpec& spec) {
  Random random(spec.seed);
  const KvLayout& kv = spec.kv;
  const auto batch = static_cast<int64_t>(spec.kv_lens.size());
  const auto default_normal = [&random](const Element& element) {
    return element ? element : Element([&random](int, int64_t, int, int) { return random.normal(); });
  };
  problem = {.num_q_heads = spec.num_q_heads,
             .kv = kv,
             .max_query_len = *std::max_element(spec.query_lens.begin(), spec.query_lens.end()),
             .window = spec.window,
             .causal = spec.causal,
             .softcap = spec.softcap,
             .sinks = spec.sinks,
             .bidirectional_spans = spec.span_len > 0,
             .precision = Precision::kAuto,
             .kernel = {}};

  query_start.assign(1, 0);
  for (const int32_t len : spec.query_lens) query_start.push_back(query_start.back() + len);
  const int64_t tokens = query_start.back();
  seq_lens = spec.kv_lens;
  k_scale = random_scales(random, kv.num_kv_heads, spec.scales);
  v_scale = random_scales(random, kv.num_kv_heads, spec.scales);
  q_descale = random_scales(random, batch * kv.num_kv_heads, spec.descales);
  k_descale = random_scales(random, batch * kv.num_kv_heads, spec.descales);
  v_descale = random_scales(random, batch * kv.num_kv_heads, spec.descales);
  for (size_t i = 0; i < q_descale.size(); ++i) logit_descale.push_back(q_descale[i] * k_descale[i]);
  for (int head = 0; spec.sinks && head < spec.num_q_heads; ++head) sinks.push_back(random.normal());
  if (spec.span_len > 0) span_ids = random_span_ids(random, tokens, spec.span_len);

  // Pages in random order; every byte that holds no token is a NaN code of its dtype.
  int64_t used = 0;
  int64_t table_width = 0;
  for (const int32_t len : spec.kv_lens) {
    const int64_t count = (len + kv.page_size - 1) / kv.page_size;
    used += count;
    table_width = std::max(table_width, count + kTableTail);
  }
  const int64_t num_pages = used + kUnusedPages;
  const int64_t page_bytes = page_format::page_bytes(kv);
  pages.assign(static_cast<size_t>(num_pages * page_bytes), kv.dtype == KvDtype::kE4M3 ? kE4M3Nan : uint8_t{0xFF});
  std::vector<int32_t> order(static_cast<size_t>(num_pages));
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[static_cast<size_t>(random.below(static_cast<int64_t>(i)))]);
  }
  block_table.assign(static_cast<size_t>(batch * table_width), -1);
  size_t next_page = 0;
  const Element key = default_normal(spec.key);
  const Element value = default_normal(spec.value);
  for (int b = 0; b < batch; ++b) {
    const int64_t length = spec.kv_lens[static_cast<size_t>(b)];
    auto& keys = k.emplace_back();
    auto& values = v.emplace_back();
    for (int64_t token = 0; token < length; ++token) {
      int32_t& entry = block_table[static_cast<size_t>(b * table_width + token / kv.page_size)];
      if (entry < 0) entry = order[next_page++];
      uint8_t* page = pages.data() + entry * page_bytes;
      const auto slot = static_cast<int>(token % kv.page_size);
      for (int head = 0; head < kv.num_kv_heads; ++head) {
        const auto h = static_cast<size_t>(head);
        for (int d = 0; d < kv.head_dim_k; ++d) {
          keys.push_back(store(kv, page, page_format::k_offset(kv, head, slot, d), key(b, token, head, d),
                               k_scale.empty() ? 1.0F : k_scale[h]));
        }
        for (int d = 0; d < kv.head_dim_v; ++d) {
          values.push_back(store(kv, page, page_format::v_offset(kv, head, slot, d), value(b, token, head, d),
                                 v_scale.empty() ? 1.0F : v_scale[h]));
        }
      }
    }
  }

  const Element query = default_normal(spec.query);
  for (int b = 0; b < batch; ++b) {
    for (int64_t token = 0; token < spec.query_lens[static_cast<size_t>(b)]; ++token) {
      for (int head = 0; head < spec.num_q_heads; ++head) {
        for (int d = 0; d < kv.head_dim_k; ++d) {
          const float x = query(b, token, head, d);
          q_bf16.push_back(to_bf16(x));
          q.push_back(spec.q_dtype == DType::kBF16 ? to_float(q_bf16.back()) : x);
        }
      }
    }
  }

  const int64_t heads = spec.num_q_heads;
  out_bf16.resize(spec.out_dtype == DType::kBF16 ? static_cast<size_t>(tokens * heads * kv.head_dim_v) : 0);
  out_f32.resize(spec.out_dtype == DType::kF32 ? static_cast<size_t>(tokens * heads * kv.head_dim_v) : 0);
  lse.resize(static_cast<size_t>(tokens * heads));
  const auto optional = [](const auto& data, DType dtype, std::initializer_list<int64_t> shape) {
    return data.empty() ? ConstTensorView{} : ConstTensorView(data.data(), dtype, shape);
  };
  const bool q_is_bf16 = spec.q_dtype == DType::kBF16;
  const bool out_is_bf16 = spec.out_dtype == DType::kBF16;
  const void* q_data = q_is_bf16 ? static_cast<const void*>(q_bf16.data()) : q.data();
  void* out_data = out_is_bf16 ? static_cast<void*>(out_bf16.data()) : out_f32.data();
  const int64_t kv_heads = kv.num_kv_heads;
  args = {.q = ConstTensorView(q_data, spec.q_dtype, {tokens, heads, kv.head_dim_k}),
          .pages = ConstTensorView(pages.data(), DType::kU8, {num_pages, page_bytes}),
          .block_table = ConstTensorView(block_table.data(), DType::kI32, {batch, table_width}),
          .seq_lens = ConstTensorView(seq_lens.data(), DType::kI32, {batch}),
          .query_start = ConstTensorView(query_start.data(), DType::kI32, {batch + 1}),
          .k_scale = optional(k_scale, DType::kF32, {kv_heads}),
          .v_scale = optional(v_scale, DType::kF32, {kv_heads}),
          .q_descale = optional(q_descale, DType::kF32, {batch, kv_heads}),
          .k_descale = optional(k_descale, DType::kF32, {batch, kv_heads}),
          .v_descale = optional(v_descale, DType::kF32, {batch, kv_heads}),
          .sinks = optional(sinks, DType::kF32, {heads}),
          .span_ids = optional(span_ids, DType::kI32, {tokens}),
          .softmax_scale =
              spec.softmax_scale != 0.0F ? spec.softmax_scale : 1.0F / std::sqrt(static_cast<float>(kv.head_dim_k)),
          .out = TensorView(out_data, spec.out_dtype, {tokens, heads, kv.head_dim_v}),
          .lse = TensorView(lse.data(), DType::kF32, {tokens, heads})};
  poison_outputs();
}

void Case::poison_outputs() {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  std::fill(out_bf16.begin(), out_bf16.end(), to_bf16(kNan));
  std::fill(out_f32.begin(), out_f32.end(), kNan);
  std::fill(lse.begin(), lse.end(), kNan);
}

OracleInput Case::oracle_input(int sequence) const {
  const auto b = static_cast<size_t>(sequence);
  const auto slice = [](const auto& data, size_t begin, size_t count) {
    return std::span(data).subspan(data.empty() ? 0 : begin, data.empty() ? 0 : count);
  };
  const auto kv_heads = static_cast<size_t>(problem.kv.num_kv_heads);
  const auto q_row = static_cast<size_t>(problem.num_q_heads) * static_cast<size_t>(problem.kv.head_dim_k);
  const auto first = static_cast<size_t>(query_start[b]);
  const size_t rows = static_cast<size_t>(query_start[b + 1]) - first;
  return {.num_q_heads = problem.num_q_heads,
          .num_kv_heads = problem.kv.num_kv_heads,
          .head_dim_k = problem.kv.head_dim_k,
          .head_dim_v = problem.kv.head_dim_v,
          .q = slice(q, first * q_row, rows * q_row),
          .k = k[b],
          .v = v[b],
          .softmax_scale = double{args.softmax_scale},
          .causal = problem.causal,
          .window = problem.window,
          .softcap = double{problem.softcap},
          .sinks = sinks,
          .span_ids = slice(span_ids, first, rows),
          .logit_descale = slice(logit_descale, b * kv_heads, kv_heads),
          .value_descale = slice(v_descale, b * kv_heads, kv_heads)};
}

OracleOutput Case::expected() const {
  OracleOutput all;
  for (int b = 0; b < static_cast<int>(seq_lens.size()); ++b) {
    const OracleOutput one = attention_oracle(oracle_input(b));
    all.out.insert(all.out.end(), one.out.begin(), one.out.end());
    all.lse.insert(all.lse.end(), one.lse.begin(), one.lse.end());
  }
  return all;
}

std::vector<float> Case::out_values() const {
  return to_floats(args.out);
}

}  // namespace quaver::testing
