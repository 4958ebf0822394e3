#include "engine/attention_probe.h"

#include <cmath>

#include "attention/cpu/oracle.h"
#include "core/check.h"

namespace quaver {

AttentionProbe::AttentionProbe(const CpuModel& model, int64_t interval)
    : model_(model), interval_(interval), layers_(model.config().layers.size()) {
  check(interval > 0, "probe interval ", interval, ": expected at least 1 step");
}

void AttentionProbe::observe(const LayerObservation& seen) {
  check(seen.batch.num_sequences() == 1, "probed batch of ", seen.batch.num_sequences(), " sequences: expected 1");
  History& history = layers_[static_cast<size_t>(seen.layer)];
  if (seen.batch.positions.front() == 0) history = {};
  history.k.insert(history.k.end(), seen.k.begin(), seen.k.end());
  history.v.insert(history.v.end(), seen.v.begin(), seen.v.end());
  if (history.steps++ % interval_ == 0) measure(seen, history);
}

void AttentionProbe::measure(const LayerObservation& seen, const History& history) {
  const auto index = static_cast<size_t>(seen.layer);
  const LayerConfig& shape = model_.config().layers[index];
  const LayerWeights& weights = model_.weights().layers[index];
  const auto group = static_cast<size_t>(seen.cache.plan().places[index].group);
  const KvLayout& layout = seen.cache.plan().groups[group].layout;
  const bool scaled = layout.dtype == KvDtype::kE4M3;
  const std::vector<float> none;
  const NaturalKv stored =
      read_back(layout, seen.cache.pages(seen.layer), seen.batch.groups[group].block_table, seen.batch.seq_lens[0],
                scaled ? weights.k_scale : none, scaled ? weights.v_scale : none);

  const auto row_size = static_cast<size_t>(model_.config().num_q_heads) * static_cast<size_t>(shape.head_dim);
  const std::span<const float> row = seen.attention.last(row_size);
  const auto add = [&](std::span<const float> k, std::span<const float> v, Sum& sum) {
    const OracleOutput reference = attention_oracle({.num_q_heads = model_.config().num_q_heads,
                                                     .num_kv_heads = shape.num_kv_heads,
                                                     .head_dim_k = shape.head_dim,
                                                     .head_dim_v = shape.head_dim,
                                                     .q = seen.q.last(row_size),
                                                     .k = k,
                                                     .v = v,
                                                     .softmax_scale = model_.config().attention_scale,
                                                     .window = shape.window,
                                                     .softcap = model_.config().attention_softcap});
    for (size_t i = 0; i < row_size; ++i) {
      const double error = row[i] - reference.out[i];
      sum.error += error * error;
      sum.square += reference.out[i] * reference.out[i];
    }
  };
  add(stored.k, stored.v, same_cache_);
  add(history.k, history.v, exact_cache_);
  ++rows_;
}

AttentionErrors AttentionProbe::errors() const {
  const auto relative = [](const Sum& sum) { return sum.square > 0 ? std::sqrt(sum.error / sum.square) : 0.0; };
  return {.same_cache = relative(same_cache_), .exact_cache = relative(exact_cache_), .rows = rows_};
}

}  // namespace quaver
