#include "model/cpu_model.h"

#include <algorithm>
#include <utility>

#include "attention/policy.h"
#include "core/check.h"
#include "ops/embedding.h"
#include "ops/geglu.h"
#include "ops/rms_norm.h"
#include "ops/softcap.h"

namespace quaver {
namespace {

void grow(std::vector<float>& buffer, int64_t size) {
  if (static_cast<int64_t>(buffer.size()) < size) buffer.resize(static_cast<size_t>(size));
}

ConstTensorView view_of(const std::vector<int32_t>& values) {
  return {values.data(), DType::kI32, {static_cast<int64_t>(values.size())}};
}

ConstTensorView view_of(const std::vector<float>& values) {
  return {values.data(), DType::kF32, {static_cast<int64_t>(values.size())}};
}

int longest_query(const Batch& batch) {
  int longest = 0;
  for (size_t b = 0; b + 1 < batch.query_start.size(); ++b) {
    longest = std::max(longest, batch.query_start[b + 1] - batch.query_start[b]);
  }
  return longest;
}

}  // namespace

std::vector<LayerCacheSpec> cache_specs(const ModelConfig& config, KvDtype dtype, std::span<const int> bf16_layers) {
  std::vector<LayerCacheSpec> specs;
  specs.reserve(config.layers.size());
  for (const LayerConfig& layer : config.layers) {
    specs.push_back({.layout = {.dtype = dtype,
                                .num_kv_heads = layer.num_kv_heads,
                                .head_dim_k = layer.head_dim,
                                .head_dim_v = layer.head_dim},
                     .window = layer.window});
  }
  for (const int layer : bf16_layers) {
    check(layer >= 0 && std::cmp_less(layer, specs.size()), "kv_cache_dtype_skip_layers ", layer, ": expected 0 to ",
          specs.size() - 1);
    specs[static_cast<size_t>(layer)].layout.dtype = KvDtype::kBF16;
  }
  return specs;
}

CpuModel::CpuModel(ModelConfig config, ModelWeights weights, CpuModelOptions options)
    : config_(std::move(config)), weights_(std::move(weights)), options_(options), ropes_(model_ropes(config_)) {
  check(config_.num_layers > 0 && config_.layers.size() == static_cast<size_t>(config_.num_layers) &&
            weights_.layers.size() == config_.layers.size(),
        "layers ", weights_.layers.size(), " with weights: expected ", config_.num_layers);
  for (const RopeShape& rope : ropes_.shapes) rope_frequencies_.push_back(rope_frequencies(rope));
  rope_tables_.resize(ropes_.shapes.size());
}

void CpuModel::check_batch(const Batch& batch, const HostKvCache& cache) const {
  const CachePlan& plan = cache.plan();
  check(plan.places.size() == config_.layers.size(), "cache layers ", plan.places.size(), ": expected ",
        config_.num_layers);
  const auto num_tokens = static_cast<size_t>(batch.num_tokens());
  const auto num_sequences = static_cast<size_t>(batch.num_sequences());
  check(num_tokens > 0 && batch.positions.size() == num_tokens, "batch positions ", batch.positions.size(),
        ": expected one for each of ", num_tokens, " tokens, at least 1");
  check(batch.query_start.size() == num_sequences + 1 && batch.query_start.front() == 0 &&
            std::is_sorted(batch.query_start.begin(), batch.query_start.end()) &&
            batch.query_start.back() == static_cast<int32_t>(num_tokens),
        "batch query_start: expected ", num_sequences + 1, " ascending values from 0 to ", num_tokens);
  check(batch.span_ids.empty() || batch.span_ids.size() == num_tokens, "batch span_ids ", batch.span_ids.size(),
        ": expected none or one for each of ", num_tokens, " tokens");
  check(batch.groups.size() == plan.groups.size(), "batch groups ", batch.groups.size(), ": expected ",
        plan.groups.size());
  for (const Batch::Group& group : batch.groups) {
    check(group.slots.size() == num_tokens &&
              group.block_table.size() >= num_sequences * static_cast<size_t>(group.max_pages),
          "batch group with ", group.slots.size(), " slots and ", group.block_table.size(), " table entries: expected ",
          num_tokens, " and at least ", num_sequences, " x ", group.max_pages);
  }
  for (const int32_t row : batch.logit_rows) {
    check(row >= 0 && row < batch.num_tokens(), "logit row ", row, ": expected 0 to ", batch.num_tokens() - 1);
  }
}

void CpuModel::reserve(const Batch& batch) {
  const int64_t num_tokens = batch.num_tokens();
  int64_t q_width = 0;
  int64_t kv_width = 0;
  for (const LayerConfig& layer : config_.layers) {
    q_width = std::max(q_width, static_cast<int64_t>(config_.num_q_heads) * layer.head_dim);
    kv_width = std::max(kv_width, static_cast<int64_t>(layer.num_kv_heads) * layer.head_dim);
  }
  for (auto* const buffer : {&space_.hidden, &space_.normed, &space_.projected}) {
    grow(*buffer, num_tokens * config_.hidden_size);
  }
  for (auto* const buffer : {&space_.q, &space_.attention}) grow(*buffer, num_tokens * q_width);
  for (auto* const buffer : {&space_.k, &space_.v}) grow(*buffer, num_tokens * kv_width);
  for (auto* const buffer : {&space_.gate, &space_.up}) grow(*buffer, num_tokens * config_.intermediate_size);
  grow(space_.logit_rows, static_cast<int64_t>(batch.logit_rows.size()) * config_.hidden_size);
}

void CpuModel::plan_groups(const CachePlan& cache_plan, int max_query_len, bool spans) {
  group_plans_.clear();
  for (const CacheGroup& group : cache_plan.groups) {
    const LayerConfig& any_layer = config_.layers[static_cast<size_t>(group.layers.front())];  // of one kind
    const AttentionProblem problem{.num_q_heads = config_.num_q_heads,
                                   .kv = group.layout,
                                   .max_query_len = max_query_len,
                                   .window = group.window,
                                   .softcap = static_cast<float>(config_.attention_softcap),
                                   .bidirectional_spans = spans && any_layer.bidirectional_spans,
                                   .batch_invariant = options_.batch_invariant,
                                   .precision = options_.attention_precision,
                                   .kernel = options_.attention_kernel};
    group_plans_.push_back({.problem = problem, .plan = plan_or_throw(problem)});
  }
}

/// normed → q, k (normed, rotated) and v, ready for the cache.
void CpuModel::project_qkv(int layer, int64_t num_tokens) {
  const auto index = static_cast<size_t>(layer);
  const LayerConfig& shape = config_.layers[index];
  const LayerWeights& weights = weights_.layers[index];
  const bool fixed_order = options_.batch_invariant;
  linear(weights.q, space_.normed.data(), num_tokens, space_.q.data(), fixed_order);
  linear(weights.k, space_.normed.data(), num_tokens, space_.k.data(), fixed_order);
  const int64_t kv_rows = num_tokens * shape.num_kv_heads;
  if (shape.k_eq_v) {  // V is K as projected: before its norm, never rotated
    std::copy_n(space_.k.begin(), kv_rows * shape.head_dim, space_.v.begin());
  } else {
    linear(weights.v, space_.normed.data(), num_tokens, space_.v.data(), fixed_order);
  }
  const double eps = config_.rms_norm_eps;
  if (config_.family == ModelFamily::kGemma4) {
    rms_norm(space_.v.data(), kv_rows, shape.head_dim, {}, eps, space_.v.data());
  }
  rms_norm(space_.q.data(), num_tokens * config_.num_q_heads, shape.head_dim, weights.q_norm, eps, space_.q.data());
  rms_norm(space_.k.data(), kv_rows, shape.head_dim, weights.k_norm, eps, space_.k.data());
  const size_t rope = ropes_.of_layer[index];
  apply_rope(ropes_.shapes[rope], rope_tables_[rope], num_tokens, config_.num_q_heads, space_.q.data());
  apply_rope(ropes_.shapes[rope], rope_tables_[rope], num_tokens, shape.num_kv_heads, space_.k.data());
}

/// Appends k and v, then q against the cache → attention.
void CpuModel::attend(int layer, const Batch& batch, HostKvCache& cache) {
  const auto index = static_cast<size_t>(layer);
  const LayerConfig& shape = config_.layers[index];
  const LayerWeights& weights = weights_.layers[index];
  const auto group_index = static_cast<size_t>(cache.plan().places[index].group);
  const Batch::Group& group = batch.groups[group_index];
  const int64_t num_tokens = batch.num_tokens();
  const int64_t heads = shape.num_kv_heads;
  const int64_t dim = shape.head_dim;
  // A BF16 cache stores the values themselves; only FP8 codes have scales.
  const bool scaled = group_plans_[group_index].problem.kv.dtype == KvDtype::kE4M3;
  const ConstTensorView k_scale = scaled ? view_of(weights.k_scale) : ConstTensorView{};
  const ConstTensorView v_scale = scaled ? view_of(weights.v_scale) : ConstTensorView{};
  append_kv({.layout = group_plans_[group_index].problem.kv,
             .k = {space_.k.data(), DType::kF32, {num_tokens, heads, dim}},
             .v = {space_.v.data(), DType::kF32, {num_tokens, heads, dim}},
             .slots = {group.slots.data(), DType::kI64, {num_tokens}},
             .k_scale = k_scale,
             .v_scale = v_scale,
             .pages = cache.pages(layer)});
  AttentionArgs args;
  args.q = {space_.q.data(), DType::kF32, {num_tokens, config_.num_q_heads, dim}};
  args.pages = cache.pages(layer);
  args.block_table = {group.block_table.data(), DType::kI32, {batch.num_sequences(), group.max_pages}};
  args.seq_lens = view_of(batch.seq_lens);
  args.query_start = view_of(batch.query_start);
  args.k_scale = k_scale;
  args.v_scale = v_scale;
  if (group_plans_[group_index].problem.bidirectional_spans) args.span_ids = view_of(batch.span_ids);
  args.softmax_scale = static_cast<float>(config_.attention_scale);
  args.out = {space_.attention.data(), DType::kF32, {num_tokens, config_.num_q_heads, dim}};
  run_attention(group_plans_[group_index].problem, group_plans_[group_index].plan, args);
}

void CpuModel::attention_block(int layer, const Batch& batch, HostKvCache& cache, const LayerObserver& observer) {
  const auto index = static_cast<size_t>(layer);
  const LayerConfig& shape = config_.layers[index];
  const LayerWeights& weights = weights_.layers[index];
  const int64_t num_tokens = batch.num_tokens();
  rms_norm(space_.hidden.data(), num_tokens, config_.hidden_size, weights.input_norm, config_.rms_norm_eps,
           space_.normed.data());
  project_qkv(layer, num_tokens);
  attend(layer, batch, cache);
  if (observer) {
    const auto q_size = static_cast<size_t>(num_tokens * config_.num_q_heads * shape.head_dim);
    const auto kv_size = static_cast<size_t>(num_tokens * shape.num_kv_heads * shape.head_dim);
    observer({.layer = layer,
              .batch = batch,
              .cache = cache,
              .q = {space_.q.data(), q_size},
              .k = {space_.k.data(), kv_size},
              .v = {space_.v.data(), kv_size},
              .attention = {space_.attention.data(), q_size}});
  }
  linear(weights.o, space_.attention.data(), num_tokens, space_.projected.data(), options_.batch_invariant);
  rms_norm_add(space_.projected.data(), num_tokens, config_.hidden_size, weights.post_attention_norm,
               config_.rms_norm_eps, space_.hidden.data());
}

void CpuModel::mlp_block(int layer, int64_t num_tokens) {
  const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
  const bool fixed_order = options_.batch_invariant;
  rms_norm(space_.hidden.data(), num_tokens, config_.hidden_size, weights.pre_feedforward_norm, config_.rms_norm_eps,
           space_.normed.data());
  linear(weights.gate, space_.normed.data(), num_tokens, space_.gate.data(), fixed_order);
  linear(weights.up, space_.normed.data(), num_tokens, space_.up.data(), fixed_order);
  geglu(space_.gate.data(), space_.up.data(), num_tokens * config_.intermediate_size);
  linear(weights.down, space_.gate.data(), num_tokens, space_.projected.data(), fixed_order);
  rms_norm_add(space_.projected.data(), num_tokens, config_.hidden_size, weights.post_feedforward_norm,
               config_.rms_norm_eps, space_.hidden.data());
  if (weights.layer_scalar == 1.0F) return;
  for (int64_t i = 0; i < num_tokens * config_.hidden_size; ++i) {
    space_.hidden[static_cast<size_t>(i)] *= weights.layer_scalar;
  }
}

std::span<const float> CpuModel::forward(const Batch& batch, HostKvCache& cache, const LayerObserver& observer) {
  check_batch(batch, cache);
  reserve(batch);
  plan_groups(cache.plan(), longest_query(batch), !batch.span_ids.empty());
  for (size_t rope = 0; rope < ropes_.shapes.size(); ++rope) {
    rope_table(rope_frequencies_[rope], batch.positions, rope_tables_[rope]);
  }
  embed_tokens(weights_.embedding, batch.token_ids, config_.embedding_scale, space_.hidden.data());
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    attention_block(layer, batch, cache, observer);
    mlp_block(layer, batch.num_tokens());
  }
  float* out = space_.logit_rows.data();
  for (const int32_t row : batch.logit_rows) {
    rms_norm(space_.hidden.data() + static_cast<int64_t>(row) * config_.hidden_size, 1, config_.hidden_size,
             weights_.final_norm, config_.rms_norm_eps, out);
    out += config_.hidden_size;
  }
  return {space_.logit_rows.data(), batch.logit_rows.size() * static_cast<size_t>(config_.hidden_size)};
}

void CpuModel::logits(std::span<const float> hidden_rows, float* logits) const {
  const auto hidden = static_cast<size_t>(config_.hidden_size);
  check(hidden_rows.size() % hidden == 0, "hidden values ", hidden_rows.size(), ": expected rows of ", hidden);
  const auto num_rows = static_cast<int64_t>(hidden_rows.size() / hidden);
  linear(weights_.lm_head, hidden_rows.data(), num_rows, logits, options_.batch_invariant);
  if (config_.final_softcap > 0) softcap(logits, num_rows * config_.vocab_size, config_.final_softcap);
}

}  // namespace quaver
