#include "testing/direct_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/bf16.h"
#include "core/e4m3.h"
#include "testing/metric.h"
#include "testing/random.h"

namespace quaver::testing {
namespace {

struct Lengths {
  std::vector<int32_t> lens;
  bool batched = false;
  [[nodiscard]] int64_t total() const {
    int64_t sum = 0;
    for (const int32_t len : lens) sum += len;
    return sum;
  }
};

/// Writes `value` as an element of `dtype` and returns what it is then.
float write(DType dtype, float value, uint8_t* to) {
  switch (dtype) {
    case DType::kF32: std::memcpy(to, &value, sizeof(value)); return value;
    case DType::kBF16: {
      const Bf16 rounded = to_bf16(value);
      std::memcpy(to, &rounded, sizeof(rounded));
      return to_float(rounded);
    }
    default: *to = e4m3_encode(value); return e4m3_decode(*to);
  }
}

/// What a page holds of an element, times the scale.
float stored(KvDtype page, DType dtype, float value, float scale) {
  if (dtype == DType::kE4M3 || dtype == DType::kU8) return value * scale;
  const float scaled = value * (1.0F / scale);
  return (page == KvDtype::kE4M3 ? e4m3_decode(e4m3_encode(scaled)) : to_float(to_bf16(scaled))) * scale;
}

DirectCase::Rows make_rows(const Lengths& lengths, int heads, int dim, DType dtype, Order order, Random& random) {
  const auto batch = static_cast<int64_t>(lengths.lens.size());
  const int64_t tokens = lengths.batched ? (batch == 0 ? 0 : lengths.lens.front()) : lengths.total();
  const int64_t gap = order == Order::kGaps ? 3 : 0;
  const int64_t dim_stride = order == Order::kColumns ? 2 : 1;
  int64_t head_stride = dim * dim_stride + gap;
  int64_t token_stride = heads * head_stride + gap;
  if (order == Order::kHeadsFirst) {
    token_stride = dim;
    head_stride = tokens * dim;
  }
  const int64_t batch_stride = order == Order::kHeadsFirst ? heads * head_stride : tokens * token_stride + gap;
  const int64_t element = dtype_bytes(dtype);
  const int64_t first = order == Order::kGaps ? 1 : 0;
  DirectCase::Rows rows;
  rows.bytes.assign(static_cast<size_t>((first + std::max<int64_t>(batch, 1) * batch_stride + 1) * element), 0xFF);
  uint8_t* const data = rows.bytes.data() + first * element;
  int64_t start = 0;
  for (int64_t b = 0; b < batch; ++b) {
    auto& values = rows.values.emplace_back();
    for (int64_t token = 0; token < lengths.lens[static_cast<size_t>(b)]; ++token) {
      for (int64_t head = 0; head < heads; ++head) {
        for (int64_t d = 0; d < dim; ++d) {
          const int64_t row =
              lengths.batched ? b * batch_stride + token * token_stride : (start + token) * token_stride;
          values.push_back(write(dtype, random.normal(), data + (row + head * head_stride + d * dim_stride) * element));
        }
      }
    }
    start += lengths.lens[static_cast<size_t>(b)];
  }
  rows.view.data = data;
  rows.view.dtype = dtype;
  if (lengths.batched) {
    rows.view.rank = 4;
    rows.view.shape = {batch, tokens, heads, dim};
    rows.view.strides = {batch_stride, token_stride, head_stride, dim_stride};
  } else {
    rows.view.rank = 3;
    rows.view.shape = {tokens, heads, dim};
    rows.view.strides = {token_stride, head_stride, dim_stride};
  }
  return rows;
}

void store_all(DirectCase::Rows& rows, KvDtype page, int heads, int dim, const std::vector<float>& scales) {
  for (auto& values : rows.values) {
    for (size_t i = 0; i < values.size(); ++i) {
      const size_t head = i / static_cast<size_t>(dim) % static_cast<size_t>(heads);
      values[i] = stored(page, rows.view.dtype, values[i], scales.empty() ? 1.0F : scales[head]);
    }
  }
}

std::vector<int32_t> starts_of(const std::vector<int32_t>& lens) {
  std::vector<int32_t> starts{0};
  for (const int32_t len : lens) starts.push_back(starts.back() + len);
  return starts;
}

std::vector<float> random_scales(Random& random, int64_t count, bool given) {
  std::vector<float> scales(given ? static_cast<size_t>(count) : 0);
  for (float& scale : scales) scale = static_cast<float>(0.5 + random.uniform());
  return scales;
}

ConstTensorView optional(const auto& data, DType dtype, std::initializer_list<int64_t> shape) {
  return data.empty() ? ConstTensorView{} : ConstTensorView(data.data(), dtype, shape);
}

}  // namespace

DirectCase::DirectCase(const DirectSpec& spec) {
  Random random(spec.seed);
  const auto batch = static_cast<int64_t>(spec.query_lens.size());
  const int64_t heads = spec.num_q_heads;
  const int64_t kv_heads = spec.num_kv_heads;
  q = make_rows({spec.query_lens, spec.batched}, spec.num_q_heads, spec.head_dim_k, spec.q, spec.order, random);
  k = make_rows({spec.key_lens, spec.batched}, spec.num_kv_heads, spec.head_dim_k, spec.k, spec.order, random);
  v = make_rows({spec.key_lens, spec.batched}, spec.num_kv_heads, spec.head_dim_v, spec.v, spec.order, random);
  query_start = starts_of(spec.query_lens);
  key_start = starts_of(spec.key_lens);
  k_scale = random_scales(random, kv_heads, spec.scales);
  v_scale = random_scales(random, kv_heads, spec.scales);
  store_all(k, spec.stored, spec.num_kv_heads, spec.head_dim_k, k_scale);
  store_all(v, spec.stored, spec.num_kv_heads, spec.head_dim_v, v_scale);
  for (auto* const descale : {&q_descale, &k_descale, &v_descale}) {
    *descale = random_scales(random, batch * kv_heads, spec.descales);
  }
  for (int64_t head = 0; spec.sinks && head < heads; ++head) sinks.push_back(random.normal());
  for (const int32_t len : spec.query_lens) {
    for (int32_t token = 0; spec.span_len > 0 && token < len; ++token) {
      const int32_t run = token / spec.span_len;
      span_ids.push_back(run % 2 == 0 ? -1 : run);
    }
  }
  const auto longest = std::ranges::max_element(spec.query_lens);
  problem = {.num_q_heads = spec.num_q_heads,
             .kv = {.dtype = spec.stored,
                    .num_kv_heads = spec.num_kv_heads,
                    .head_dim_k = spec.head_dim_k,
                    .head_dim_v = spec.head_dim_v,
                    .page_size = spec.page_size},
             .max_query_len = longest == spec.query_lens.end() ? 1 : std::max(*longest, 1),
             .window = spec.window,
             .causal = spec.causal,
             .softcap = spec.softcap,
             .sinks = spec.sinks,
             .bidirectional_spans = spec.span_len > 0,
             .kernel = {}};
  const int64_t tokens = query_start.back();
  const auto view_like_q = [&](const std::vector<int64_t>& rest, void* data, DType dtype) {
    std::vector<int64_t> dims =
        spec.batched ? std::vector<int64_t>{batch, spec.query_lens.front()} : std::vector<int64_t>{tokens};
    dims.insert(dims.end(), rest.begin(), rest.end());
    TensorView view;
    view.data = data;
    view.dtype = dtype;
    view.rank = static_cast<int>(dims.size());
    int64_t stride = 1;
    for (size_t axis = dims.size(); axis-- > 0;) {
      view.shape.at(axis) = dims[axis];
      view.strides.at(axis) = stride;
      stride *= dims[axis];
    }
    return view;
  };
  out_bytes.resize(static_cast<size_t>(tokens * heads * spec.head_dim_v * dtype_bytes(spec.out)));
  lse.resize(static_cast<size_t>(tokens * heads));
  args = {
      .q = q.view,
      .k = k.view,
      .v = v.view,
      .query_start = spec.batched ? ConstTensorView{} : ConstTensorView(query_start.data(), DType::kI32, {batch + 1}),
      .key_start = spec.batched ? ConstTensorView{} : ConstTensorView(key_start.data(), DType::kI32, {batch + 1}),
      .k_scale = optional(k_scale, DType::kF32, {kv_heads}),
      .v_scale = optional(v_scale, DType::kF32, {kv_heads}),
      .q_descale = optional(q_descale, DType::kF32, {batch, kv_heads}),
      .k_descale = optional(k_descale, DType::kF32, {batch, kv_heads}),
      .v_descale = optional(v_descale, DType::kF32, {batch, kv_heads}),
      .sinks = optional(sinks, DType::kF32, {heads}),
      .span_ids = span_ids.empty() ? ConstTensorView{} : ConstTensorView(view_like_q({}, span_ids.data(), DType::kI32)),
      .softmax_scale = 1.0F / std::sqrt(static_cast<float>(spec.head_dim_k)),
      .out = view_like_q({heads, spec.head_dim_v}, out_bytes.data(), spec.out),
      .lse = view_like_q({heads}, lse.data(), DType::kF32)};
  poison_outputs();
}

void DirectCase::poison_outputs() {
  std::ranges::fill(out_bytes, uint8_t{0xFF});
  std::ranges::fill(lse, std::numeric_limits<float>::quiet_NaN());
}

OracleOutput DirectCase::expected() const {
  OracleOutput all;
  for (size_t b = 0; b + 1 < query_start.size(); ++b) {
    const auto kv_heads = static_cast<size_t>(problem.kv.num_kv_heads);
    const auto slice = [&](const std::vector<float>& values) {
      return std::span(values).subspan(values.empty() ? 0 : b * kv_heads, values.empty() ? 0 : kv_heads);
    };
    std::vector<float> logit_descale;
    for (size_t i = 0; i < slice(q_descale).size(); ++i)
      logit_descale.push_back(slice(q_descale)[i] * slice(k_descale)[i]);
    const auto first = static_cast<size_t>(query_start[b]);
    const size_t rows = static_cast<size_t>(query_start[b + 1]) - first;
    const OracleOutput one = attention_oracle(
        {.num_q_heads = problem.num_q_heads,
         .num_kv_heads = problem.kv.num_kv_heads,
         .head_dim_k = problem.kv.head_dim_k,
         .head_dim_v = problem.kv.head_dim_v,
         .q = q.values[b],
         .k = k.values[b],
         .v = v.values[b],
         .softmax_scale = double{args.softmax_scale},
         .causal = problem.causal,
         .window = problem.window,
         .softcap = double{problem.softcap},
         .sinks = sinks,
         .span_ids = std::span(span_ids).subspan(span_ids.empty() ? 0 : first, span_ids.empty() ? 0 : rows),
         .logit_descale = logit_descale,
         .value_descale = slice(v_descale)});
    all.out.insert(all.out.end(), one.out.begin(), one.out.end());
    all.lse.insert(all.lse.end(), one.lse.begin(), one.lse.end());
  }
  return all;
}

std::vector<float> DirectCase::out_values() const {
  const auto count = static_cast<int64_t>(out_bytes.size()) / dtype_bytes(args.out.dtype);
  return to_floats(ConstTensorView(out_bytes.data(), args.out.dtype, {count}));
}

std::vector<DirectSpec> direct_specs() {
  const std::vector<int32_t> query_lens{5, 1, 0, 33, 17};
  const std::vector<int32_t> key_lens{70, 16, 3, 33, 130};
  std::vector<DirectSpec> specs;
  const auto add = [&](DirectSpec spec) {
    spec.seed = specs.size() + 1;
    if (spec.query_lens.empty()) {
      spec.query_lens = spec.batched ? std::vector<int32_t>(2, 21) : query_lens;
      spec.key_lens = spec.batched ? std::vector<int32_t>(2, 43) : key_lens;
    }
    specs.push_back(spec);
  };
  for (const Order order : {Order::kDense, Order::kHeadsFirst, Order::kGaps, Order::kColumns}) {
    for (const bool batched : {false, true}) {
      add({.query_lens = {}, .key_lens = {}, .batched = batched, .num_q_heads = 4, .num_kv_heads = 2, .order = order});
      add({.query_lens = {},
           .key_lens = {},
           .batched = batched,
           .num_q_heads = 3,
           .num_kv_heads = 3,
           .head_dim_k = 40,
           .head_dim_v = 24,
           .k = DType::kBF16,
           .v = DType::kF32,
           .stored = KvDtype::kBF16,
           .page_size = 16,
           .order = order});
    }
  }
  for (const DType q : {DType::kE4M3, DType::kU8, DType::kF32}) {
    add({.query_lens = {}, .key_lens = {}, .num_q_heads = 2, .q = q, .descales = true});
  }
  for (const DType kv : {DType::kU8, DType::kBF16, DType::kF32}) {
    for (const KvDtype page : {KvDtype::kE4M3, KvDtype::kBF16}) {
      add({.query_lens = {}, .key_lens = {}, .num_q_heads = 2, .k = kv, .v = kv, .stored = page, .scales = true});
    }
  }
  add({.query_lens = {}, .key_lens = {}, .num_q_heads = 2, .k = DType::kE4M3, .v = DType::kBF16, .scales = true});
  add({.query_lens = {}, .key_lens = {}, .num_q_heads = 8, .page_size = 32, .causal = false, .sinks = true});
  add({.query_lens = {}, .key_lens = {}, .num_q_heads = 2, .page_size = 128, .window = 9, .softcap = 5.0F});
  add({.query_lens = {}, .key_lens = {}, .batched = true, .num_q_heads = 2, .window = 11, .span_len = 6});
  add({.query_lens = {1, 1, 1}, .key_lens = {64, 1, 65}, .num_q_heads = 16, .descales = true, .out = DType::kBF16});
  add({.query_lens = {0, 7}, .key_lens = {0, 3}, .num_q_heads = 2});  // more queries than keys
  return specs;
}

}  // namespace quaver::testing
