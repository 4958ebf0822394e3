#include "attention/cpu/oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"

namespace quaver {
namespace {

struct Sizes {
  int64_t queries = 0;
  int64_t keys = 0;
};

Sizes checked_sizes(const OracleInput& in) {
  check(in.num_kv_heads > 0 && in.num_q_heads > 0 && in.num_q_heads % in.num_kv_heads == 0, "num_q_heads ",
        in.num_q_heads, ": expected a positive multiple of num_kv_heads ", in.num_kv_heads);
  check(in.head_dim_k > 0 && in.head_dim_v > 0, "head dims ", in.head_dim_k, ", ", in.head_dim_v, ": expected > 0");
  const auto rows_of = [](std::span<const float> tensor, int heads, int dim, const char* name) {
    const int64_t row = int64_t{heads} * dim;
    const auto size = static_cast<int64_t>(tensor.size());
    check(size % row == 0, name, " size ", size, ": expected a multiple of heads * dim = ", row);
    return size / row;
  };
  const Sizes sizes{.queries = rows_of(in.q, in.num_q_heads, in.head_dim_k, "q"),
                    .keys = rows_of(in.k, in.num_kv_heads, in.head_dim_k, "k")};
  const int64_t values = rows_of(in.v, in.num_kv_heads, in.head_dim_v, "v");
  check(values == sizes.keys, "v tokens ", values, ": expected as many as keys, ", sizes.keys);
  const auto check_optional = [](size_t size, int64_t expected, const char* name) {
    check(size == 0 || static_cast<int64_t>(size) == expected, name, " size ", size, ": expected 0 or ", expected);
  };
  check_optional(in.sinks.size(), in.num_q_heads, "sinks");
  check_optional(in.span_ids.size(), sizes.queries, "span_ids");
  check_optional(in.logit_descale.size(), in.num_kv_heads, "logit_descale");
  check_optional(in.value_descale.size(), in.num_kv_heads, "value_descale");
  return sizes;
}

int32_t span_of(const OracleInput& in, int64_t key) {
  const int64_t keys = static_cast<int64_t>(in.k.size()) / (int64_t{in.num_kv_heads} * in.head_dim_k);
  const int64_t token = key - (keys - static_cast<int64_t>(in.span_ids.size()));
  return in.span_ids.empty() || token < 0 ? -1 : in.span_ids[static_cast<size_t>(token)];
}

// One query row of one head: out[Dv] and the row's LSE.
double attend_row(const OracleInput& in, Sizes sizes, int64_t row, int head, std::span<double> out) {
  const int64_t position = sizes.keys - sizes.queries + row;
  const int64_t kv_head = head / (in.num_q_heads / in.num_kv_heads);
  const auto h = static_cast<size_t>(kv_head);
  const double scale = in.softmax_scale * (in.logit_descale.empty() ? 1.0 : double{in.logit_descale[h]});
  const float* q = in.q.data() + (row * in.num_q_heads + head) * in.head_dim_k;

  std::vector<int64_t> visible;
  std::vector<double> logits;
  for (int64_t key = 0; key < sizes.keys; ++key) {
    if (!oracle_sees(in, position, key)) continue;
    const float* k = in.k.data() + (key * in.num_kv_heads + kv_head) * in.head_dim_k;
    double logit = 0.0;
    for (int d = 0; d < in.head_dim_k; ++d) logit += double{q[d]} * double{k[d]};
    logit *= scale;
    visible.push_back(key);
    logits.push_back(in.softcap > 0.0 ? in.softcap * std::tanh(logit / in.softcap) : logit);
  }

  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double sink = in.sinks.empty() ? -kInfinity : double{in.sinks[static_cast<size_t>(head)]};
  double maximum = sink;
  for (const double logit : logits) maximum = std::max(maximum, logit);
  std::fill(out.begin(), out.end(), 0.0);
  if (maximum == -kInfinity && logits.empty()) return -kInfinity;

  double sum = std::exp(sink - maximum);
  for (size_t i = 0; i < visible.size(); ++i) {
    const double weight = std::exp(logits[i] - maximum);  // a NaN logit makes sum, LSE and every output NaN
    sum += weight;
    const float* v = in.v.data() + (visible[i] * in.num_kv_heads + kv_head) * in.head_dim_v;
    for (size_t d = 0; d < out.size(); ++d) out[d] += weight * double{v[d]};
  }
  const double descale = in.value_descale.empty() ? 1.0 : double{in.value_descale[h]};
  for (double& value : out) value = value / sum * descale;
  return maximum + std::log(sum);
}

}  // namespace

bool oracle_sees(const OracleInput& input, int64_t position, int64_t key) {
  if (input.window > 0 && key <= position - input.window) return false;
  if (key <= position) return true;
  if (!input.causal) return input.window == 0 || key < position + input.window;
  const int32_t span = span_of(input, position);
  return span >= 0 && span == span_of(input, key);
}

OracleOutput attention_oracle(const OracleInput& input) {
  const Sizes sizes = checked_sizes(input);
  const int64_t rows = sizes.queries * input.num_q_heads;
  OracleOutput result;
  result.out.resize(static_cast<size_t>(rows * input.head_dim_v));
  result.lse.resize(static_cast<size_t>(rows));
#pragma omp parallel for schedule(dynamic)
  for (int64_t i = 0; i < rows; ++i) {
    const std::span<double> out(result.out.data() + i * input.head_dim_v, static_cast<size_t>(input.head_dim_v));
    result.lse[static_cast<size_t>(i)] =
        attend_row(input, sizes, i / input.num_q_heads, static_cast<int>(i % input.num_q_heads), out);
  }
  return result;
}

}  // namespace quaver
