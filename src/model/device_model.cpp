#include "model/device_model.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "attention/policy.h"
#include "attention/tiles.h"
#include "core/check.h"
#include "model/ropes.h"

namespace quaver {
namespace {

std::vector<LinearInput> linear_inputs(const DeviceWeights& weights) {
  std::vector<LinearInput> inputs;
  for (const DeviceLayerWeights& layer : weights.layers) {
    for (const DeviceLinear* linear : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) {
      inputs.push_back({.width = linear->in_features(), .kind = linear->input_kind()});
    }
  }
  return inputs;
}

/// Products in fixed order read and write whole blocks of rows.
DeviceModelOptions with_whole_blocks(DeviceModelOptions options) {
  if (!options.batch_invariant) return options;
  const auto whole = [](int64_t rows) { return packed_fp8::ceil_divide(rows, kFixedOrderRows) * kFixedOrderRows; };
  options.workspace.max_tokens = whole(options.workspace.max_tokens);
  options.workspace.max_logit_rows = whole(options.workspace.max_logit_rows);
  return options;
}

LinearFacts facts_of(const DeviceLinear& linear) {
  return {.out_features = linear.out_features(),
          .in_features = linear.in_features(),
          .fp8 = linear.input_kind() != InputKind::kBf16,
          .gated = linear.gated()};
}

}  // namespace

DeviceModel::DeviceModel(ModelConfig config, DeviceWeights weights, const CachePlan& plan, const DeviceInfo& device,
                         const DeviceModelOptions& options)
    : config_(std::move(config)),
      weights_(std::move(weights)),
      plan_(plan),
      options_(with_whole_blocks(options)),
      where_{.kind = Device::Kind::kCuda, .index = device.index} {
  check(config_.num_layers > 0 && std::ssize(config_.layers) == config_.num_layers &&
            weights_.layers.size() == config_.layers.size() && plan.places.size() == config_.layers.size(),
        "layers ", weights_.layers.size(), " with weights, ", plan.places.size(), " with a cache: expected ",
        config_.num_layers);
  check_as(ErrorKind::kInternal, options.batch_invariant == (weights_.gemm->order == packed_fp8::SumOrder::kFixed),
           "batch_invariant ", options.batch_invariant, ": expected weights loaded for it");
  attention_.reserve(plan.groups.size());
  // More tokens than the decode kernel takes, so that prompts have the prefill kernel whatever chunks they come in.
  const int64_t least = options.batch_invariant ? tiles::kMaxDecodeRows + 1 : 1;
  const int64_t longest = std::max(options.max_query_len, least);
  for (const CacheGroup& group : plan.groups) {
    const bool spans = config_.layers[static_cast<size_t>(group.layers.front())].bidirectional_spans;
    attention_.push_back({.decode = make_attention(group, 1, false, device),
                          .mixed = make_attention(group, longest, spans, device),
                          .spans = spans});
  }
  allocate();
}

DeviceAttention DeviceModel::make_attention(const CacheGroup& group, int64_t max_query_len, bool spans,
                                            const DeviceInfo& device) const {
  const AttentionProblem problem{.arch = device.arch,
                                 .num_q_heads = config_.num_q_heads,
                                 .kv = group.layout,
                                 .max_query_len = static_cast<int>(max_query_len),
                                 .window = group.window,
                                 .softcap = static_cast<float>(config_.attention_softcap),
                                 .bidirectional_spans = spans,
                                 .batch_invariant = options_.batch_invariant,
                                 .precision = options_.attention_precision,
                                 .kernel = options_.attention_kernel};
  DeviceAttentionLimits limits{.max_sequences = options_.workspace.max_sequences,
                               .max_tokens = options_.workspace.max_tokens};
  if (options_.batch_invariant) {
    // A window of fewer keys than a split may begin in one and end in the next.
    const int64_t visible =
        group.window > 0 ? std::max(group.window, tiles::kFixedSplitTokens) : options_.max_model_len;
    limits.max_kv_tokens = limits.max_sequences * std::min(visible, options_.max_model_len);
    limits.max_decode_query_len = 1;
  }
  return {problem, plan_or_throw(problem), device, limits};
}

void DeviceModel::allocate() {
  const bool gated =
      std::ranges::all_of(weights_.layers, [](const DeviceLayerWeights& layer) { return layer.gate_up.gated(); });
  const WorkspaceLayout layout = workspace_layout(config_, linear_inputs(weights_), gated, options_.workspace);
  memory_ = DeviceBuffer<uint8_t>(layout.bytes);
  const auto at = [this](int64_t offset) { return static_cast<void*>(memory_.data() + offset); };
  const auto rows_at = [&](int64_t offset) { return static_cast<Bf16*>(at(offset)); };
  space_ = {.hidden = rows_at(layout.hidden),
            .last_hidden = rows_at(layout.last_hidden),
            .projected = rows_at(layout.projected),
            .qkv = rows_at(layout.qkv),
            .attention = rows_at(layout.attention),
            .gate_up = rows_at(layout.gate_up),
            .input = at(layout.input),
            .input_scales = static_cast<float*>(at(layout.input_scales)),
            .final_hidden = rows_at(layout.final_hidden),
            .logits = static_cast<float*>(at(layout.logits))};
  std::vector<int32_t> counting(static_cast<size_t>(options_.workspace.max_sequences + 1));
  std::iota(counting.begin(), counting.end(), 0);
  counting_ = DeviceBuffer<int32_t>(std::ssize(counting));
  check_cuda(cudaMemcpy(counting_.data(), counting.data(), counting_.bytes(), cudaMemcpyDefault), "cudaMemcpy");
  ModelRopes ropes = model_ropes(config_);
  rope_of_layer_ = std::move(ropes.of_layer);
  for (size_t i = 0; i < ropes.shapes.size(); ++i) {
    const std::vector<float> frequencies = rope_frequencies(ropes.shapes[i]);
    Rope& rope = ropes_.emplace_back();
    rope.frequencies = DeviceBuffer<float>(std::ssize(frequencies));
    rope.rotary_pairs = ropes.shapes[i].rotary_pairs;
    rope.table = static_cast<float*>(at(layout.rope[i]));
    check_cuda(cudaMemcpy(rope.frequencies.data(), frequencies.data(), rope.frequencies.bytes(), cudaMemcpyDefault),
               "cudaMemcpy");
  }
}

std::vector<LayerFacts> DeviceModel::facts() const {
  std::vector<LayerFacts> facts;
  for (const DeviceLayerWeights& layer : weights_.layers) {
    facts.push_back({.qkv = facts_of(layer.qkv),
                     .out = facts_of(layer.o),
                     .gate_up = facts_of(layer.gate_up),
                     .down = facts_of(layer.down)});
  }
  return facts;
}

/// Where an op leaves what `linear` reads.
GemmInput DeviceModel::input_of(const DeviceLinear& linear) const {
  GemmInput input{.kind = linear.input_kind(), .static_scale = linear.static_scale()};
  if (input.kind == InputKind::kBf16) {
    input.rows = static_cast<Bf16*>(space_.input);
    return input;
  }
  input.packed = static_cast<uint8_t*>(space_.input);
  input.scales = space_.input_scales;
  if (input.kind == InputKind::kPerBlock) input.scale_stride = block_scale_stride(options_.workspace.max_tokens);
  if (input.kind == InputKind::kStatic) input.scale_stride = 0;
  return input;
}

TensorView DeviceModel::rows(Bf16* data, int64_t num_rows, int64_t width) const {
  return {data, DType::kBF16, {num_rows, width}, where_};
}

bool DeviceModel::one_token_each(const Pass& pass) {
  return pass.batch.one_token_each || pass.narrowed;
}

DeviceAttention& DeviceModel::attention(const Pass& pass, size_t group) {
  return one_token_each(pass) ? attention_[group].decode : attention_[group].mixed;
}

/// The lengths, the table and the spans of a group; the tensors of a layer come on top.
AttentionArgs DeviceModel::attention_args(const Pass& pass, size_t group) const {
  const DeviceBatch& batch = pass.batch;
  const DeviceBatch::Group& tables = batch.groups[group];
  AttentionArgs args;
  args.block_table = {tables.block_table, DType::kI32, {batch.num_sequences, tables.max_pages}, where_};
  args.seq_lens = {batch.seq_lens, DType::kI32, {batch.num_sequences}, where_};
  args.query_start = {
      pass.narrowed ? counting_.data() : batch.query_start, DType::kI32, {batch.num_sequences + 1}, where_};
  if (batch.span_ids != nullptr && attention_[group].spans && !one_token_each(pass)) {
    args.span_ids = {batch.span_ids, DType::kI32, {batch.num_tokens}, where_};
  }
  args.softmax_scale = static_cast<float>(config_.attention_scale);
  return args;
}

void DeviceModel::prepare(const Pass& pass) {
  const DeviceBatch& batch = pass.batch;
  check_as(ErrorKind::kInternal,
           batch.num_tokens > 0 && batch.num_tokens <= options_.workspace.max_tokens &&
               batch.num_sequences <= options_.workspace.max_sequences && batch.groups.size() == attention_.size(),
           "batch of ", batch.num_tokens, " tokens, ", batch.num_sequences, " sequences, ", batch.groups.size(),
           " groups: expected at most ", options_.workspace.max_tokens, ", ", options_.workspace.max_sequences, " and ",
           attention_.size());
  pass.begin(StepPart::kPrepare);
  for (const Rope& rope : ropes_) {
    device_ops::rope_table({.positions = batch.positions,
                            .frequencies = rope.frequencies.data(),
                            .rotary_pairs = rope.rotary_pairs,
                            .num_tokens = batch.num_tokens,
                            .table = rope.table},
                           pass.stream);
  }
  for (size_t group = 0; group < attention_.size(); ++group) {
    attention(pass, group).schedule(attention_args(pass, group), pass.stream);
  }
  if (batch.last_tokens_only && batch.num_logit_rows > 0) {
    Pass last = pass;
    last.narrowed = true;
    const auto group = static_cast<size_t>(plan_.places.back().group);
    attention(last, group).schedule(attention_args(last, group), pass.stream);
  }
}

void DeviceModel::add_norm(const Pass& pass, const float* post_norm, float layer_scalar, const float* next_norm,
                           const DeviceLinear* next) {
  pass.begin(StepPart::kNorms);
  device_ops::add_norm_quantize({.projected = space_.projected,
                                 .post_norm = post_norm,
                                 .hidden = pass.hidden,
                                 .layer_scalar = layer_scalar,
                                 .next_norm = next_norm,
                                 .eps = static_cast<float>(config_.rms_norm_eps),
                                 .num_tokens = pass.num_rows,
                                 .hidden_size = config_.hidden_size,
                                 .out = next != nullptr ? input_of(*next) : GemmInput{}},
                                pass.stream);
}

void DeviceModel::project_and_append(int layer, const Pass& pass) {
  const auto index = static_cast<size_t>(layer);
  const LayerConfig& shape = config_.layers[index];
  const DeviceLayerWeights& weights = weights_.layers[index];
  const auto group = static_cast<size_t>(plan_.places[index].group);
  const int64_t tokens = pass.num_rows;
  pass.begin(StepPart::kQkvGemm);
  weights.qkv.run(input_of(weights.qkv), tokens, rows(space_.qkv, tokens, weights.qkv.out_features()), pass.stream);
  pass.begin(StepPart::kQkvAppend);
  const Rope& rope = ropes_[rope_of_layer_[index]];
  device_ops::qkv_append({.qkv = space_.qkv,
                          .num_tokens = tokens,
                          .num_q_heads = config_.num_q_heads,
                          .layout = plan_.groups[group].layout,
                          .k_eq_v = shape.k_eq_v,
                          .q_norm = weights.q_norm,
                          .k_norm = weights.k_norm,
                          .v_norm = config_.family == ModelFamily::kGemma4,
                          .eps = static_cast<float>(config_.rms_norm_eps),
                          .rotary_pairs = rope.rotary_pairs,
                          .rope_table = rope.table,
                          .slots = pass.batch.groups[group].slots,
                          .k_scale = has_scales(group) ? weights.k_scale : nullptr,
                          .v_scale = has_scales(group) ? weights.v_scale : nullptr,
                          .pages = pass.cache.pages(layer)},
                         pass.stream);
}

/// The queries change places with what attention writes: those of the other tokens are done with.
void DeviceModel::narrow(int layer, Pass& pass) {
  const auto index = static_cast<size_t>(layer);
  const int64_t q_width = int64_t{config_.num_q_heads} * config_.layers[index].head_dim;
  const auto gather = [&](const Bf16* from, int64_t stride, int64_t width, Bf16* to) {
    device_ops::last_rows({.rows = from,
                           .stride = stride,
                           .query_start = pass.batch.query_start,
                           .num_sequences = pass.batch.num_sequences,
                           .width = width,
                           .out = to},
                          pass.stream);
  };
  gather(space_.qkv, weights_.layers[index].qkv.out_features(), q_width, space_.attention);
  gather(space_.hidden, config_.hidden_size, config_.hidden_size, space_.last_hidden);
  pass.narrowed = true;
  pass.num_rows = pass.batch.num_sequences;
  pass.hidden = space_.last_hidden;
}

void DeviceModel::attention_block(int layer, Pass& pass) {
  const auto index = static_cast<size_t>(layer);
  const LayerConfig& shape = config_.layers[index];
  const DeviceLayerWeights& weights = weights_.layers[index];
  const auto group = static_cast<size_t>(plan_.places[index].group);

  pass.begin(shape.sliding ? StepPart::kSlidingAttention : StepPart::kFullAttention);
  if (pass.batch.last_tokens_only && layer + 1 == config_.num_layers) narrow(layer, pass);
  const int64_t tokens = pass.num_rows;
  Bf16* const queries = pass.narrowed ? space_.attention : space_.qkv;
  Bf16* const attended = pass.narrowed ? space_.qkv : space_.attention;
  AttentionArgs args = attention_args(pass, group);
  args.q = {queries, DType::kBF16, {tokens, config_.num_q_heads, shape.head_dim}, where_};
  if (!pass.narrowed) args.q.strides[0] = weights.qkv.out_features();
  args.pages = pass.cache.pages(layer);
  if (has_scales(group)) {
    args.k_scale = {weights.k_scale, DType::kF32, {shape.num_kv_heads}, where_};
    args.v_scale = {weights.v_scale, DType::kF32, {shape.num_kv_heads}, where_};
  }
  args.out = {attended, DType::kBF16, {tokens, config_.num_q_heads, shape.head_dim}, where_};
  // Keys of earlier steps need not wait for qkv_append(): prepare() had ended when the embedding began. The last tokens
  // of a narrowed pass are not all that it appends.
  const bool new_keys_only = pass.batch.older_keys_exist && !pass.narrowed;
  attention(pass, group).run(args, pass.stream, new_keys_only ? InFront::kNewKeys : InFront::kAnything);

  GemmInput input = input_of(weights.o);
  if (input.kind == InputKind::kBf16) {
    input.rows = attended;
  } else {
    pass.begin(StepPart::kQuantize);
    device_ops::quantize(
        {.rows = attended, .num_tokens = tokens, .width = int64_t{config_.num_q_heads} * shape.head_dim, .out = input},
        pass.stream);
  }
  pass.begin(StepPart::kOutGemm);
  weights.o.run(input, tokens, rows(space_.projected, tokens, config_.hidden_size), pass.stream);
  add_norm(pass, weights.post_attention_norm, 1.0F, weights.pre_feedforward_norm, &weights.gate_up);
}

GemmInput DeviceModel::activate(int layer, const Pass& pass) {
  const DeviceLayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
  const int64_t tokens = pass.num_rows;
  const int64_t inner = config_.intermediate_size;
  GemmInput activations = input_of(weights.down);
  pass.begin(StepPart::kGateUpGemm);
  if (!weights.gate_up.gated()) {
    weights.gate_up.run(input_of(weights.gate_up), tokens, rows(space_.gate_up, tokens, 2 * inner), pass.stream);
    pass.begin(StepPart::kGeglu);
    device_ops::geglu_quantize(
        {.gate_up = space_.gate_up, .num_tokens = tokens, .intermediate_size = inner, .out = activations}, pass.stream);
    return activations;
  }
  weights.gate_up.run_geglu(input_of(weights.gate_up), tokens, rows(space_.gate_up, tokens, inner), pass.stream);
  if (activations.kind == InputKind::kBf16) {
    activations.rows = space_.gate_up;
    return activations;
  }
  pass.begin(StepPart::kGeglu);
  device_ops::quantize({.rows = space_.gate_up, .num_tokens = tokens, .width = inner, .out = activations}, pass.stream);
  return activations;
}

void DeviceModel::mlp_block(int layer, const Pass& pass) {
  const auto index = static_cast<size_t>(layer);
  const DeviceLayerWeights& weights = weights_.layers[index];
  const int64_t tokens = pass.num_rows;
  const GemmInput activations = activate(layer, pass);
  pass.begin(StepPart::kDownGemm);
  weights.down.run(activations, tokens, rows(space_.projected, tokens, config_.hidden_size), pass.stream);
  const bool last = layer + 1 == config_.num_layers;
  const DeviceLayerWeights* const next = last ? nullptr : &weights_.layers[index + 1];
  add_norm(pass, weights.post_feedforward_norm, weights.layer_scalar, last ? nullptr : next->input_norm,
           last ? nullptr : &next->qkv);
}

void DeviceModel::forward(const DeviceBatch& batch, const DeviceKvCache& cache, cudaStream_t stream,
                          const PartObserver& observer) {
  Pass pass{.batch = batch,
            .cache = cache,
            .stream = stream,
            .observer = observer,
            .num_rows = batch.num_tokens,
            .hidden = space_.hidden};
  prepare(pass);
  pass.begin(StepPart::kEmbedding);
  device_ops::embed_tokens({.table = weights_.embedding,
                            .vocab_size = config_.vocab_size,
                            .token_ids = batch.token_ids,
                            .scale = static_cast<float>(config_.embedding_scale),
                            .num_tokens = batch.num_tokens,
                            .hidden_size = config_.hidden_size,
                            .hidden = space_.hidden},
                           stream);
  pass.begin(StepPart::kNorms);
  const DeviceLayerWeights& first = weights_.layers.front();
  device_ops::norm_quantize({.hidden = space_.hidden,
                             .norm = first.input_norm,
                             .eps = static_cast<float>(config_.rms_norm_eps),
                             .num_tokens = batch.num_tokens,
                             .hidden_size = config_.hidden_size,
                             .out = input_of(first.qkv)},
                            stream);
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    project_and_append(layer, pass);
    if (layer + 1 == config_.num_layers && batch.num_logit_rows == 0) break;  // K and V are all that is wanted
    attention_block(layer, pass);
    mlp_block(layer, pass);
  }
}

float* DeviceModel::logits(const DeviceBatch& batch, int64_t first_row, int64_t num_rows, cudaStream_t stream) {
  check_as(
      ErrorKind::kInternal,
      first_row >= 0 && num_rows > 0 && num_rows <= max_logit_rows() && first_row + num_rows <= batch.num_logit_rows,
      "logit rows ", first_row, " to ", first_row + num_rows, ": expected at most ", max_logit_rows(), " of ",
      batch.num_logit_rows);
  device_ops::final_norm({.hidden = batch.last_tokens_only ? space_.last_hidden : space_.hidden,
                          .rows = batch.logit_rows + first_row,
                          .num_rows = num_rows,
                          .hidden_size = config_.hidden_size,
                          .norm = weights_.final_norm,
                          .eps = static_cast<float>(config_.rms_norm_eps),
                          .out = space_.final_hidden},
                         stream);
  const TensorView out{space_.logits, DType::kF32, {num_rows, config_.vocab_size}, where_};
  weights_.lm_head.run({.rows = space_.final_hidden}, num_rows, out, stream);
  return space_.logits;
}

}  // namespace quaver
