#include "model/step_cost.h"

#include <algorithm>

#include "attention/tiles.h"
#include "core/check.h"
#include "kv_cache/page_format.h"

namespace quaver {
namespace {

constexpr double kBf16Bytes = 2;
constexpr double kFloatBytes = 4;

double as_double(int64_t value) {
  return static_cast<double>(value);
}

/// Bytes of an input value: E4M3 where the weight is (the scales, a 4-byte word a row, do not count).
double input_bytes(const LinearFacts& linear) {
  return linear.fp8 ? 1 : kBf16Bytes;
}

class Costs {
 public:
  Costs(const ModelConfig& config, const StepLoad& load)
      : config_(config), load_(load), tokens_(as_double(load.num_tokens())), hidden_(config.hidden_size) {}

  void add_step(const std::vector<LayerFacts>& layers) {
    const double rows = as_double(load_.num_logit_rows);
    const double vocab = as_double(config_.vocab_size);
    of(StepPart::kEmbedding).bytes += tokens_ * 2 * hidden_ * kBf16Bytes;
    of(StepPart::kNorms).bytes += tokens_ * hidden_ * (kBf16Bytes + input_bytes(layers.front().qkv));
    PartCost& head = of(StepPart::kLmHead);
    head.bytes += rows * 2 * hidden_ * kBf16Bytes;  // final norm
    head.bytes += vocab * hidden_ * kBf16Bytes + rows * (hidden_ * kBf16Bytes + vocab * kFloatBytes);
    head.bf16_flops += 2 * rows * vocab * hidden_;
    of(StepPart::kSampling).bytes += rows * vocab * kFloatBytes;
  }

  void add_layer(const LayerConfig& layer, const KvLayout& layout, const LayerFacts& facts, const LayerFacts* next) {
    add_gemm(StepPart::kQkvGemm, facts.qkv, tokens_);
    const double q_bytes = kBf16Bytes * config_.num_q_heads * layer.head_dim;
    const double token_bytes = as_double(page_format::token_bytes(layout));
    of(StepPart::kQkvAppend).bytes +=
        tokens_ * (kBf16Bytes * as_double(facts.qkv.out_features) + q_bytes + token_bytes);
    const bool last = next == nullptr;
    if (last && load_.num_logit_rows == 0) return;  // K and V are all that is wanted
    const bool narrowed = last && load_.last_tokens_only;
    const double rows = narrowed ? as_double(std::ssize(load_.sequences)) : tokens_;
    add_gemm(StepPart::kOutGemm, facts.out, rows);
    add_gemm(StepPart::kGateUpGemm, facts.gate_up, rows);
    add_gemm(StepPart::kDownGemm, facts.down, rows);
    if (facts.out.fp8) of(StepPart::kQuantize).bytes += rows * (q_bytes + q_bytes / kBf16Bytes);
    add_residual(input_bytes(facts.gate_up), rows);
    add_residual(last ? 0 : input_bytes(next->qkv), rows);
    const double inner = config_.intermediate_size;
    if (!facts.gate_up.gated) {
      of(StepPart::kGeglu).bytes += rows * inner * (2 * kBf16Bytes + input_bytes(facts.down));
    } else if (facts.down.fp8) {  // BF16 activations are the product's input as they are
      of(StepPart::kGeglu).bytes += rows * inner * (kBf16Bytes + input_bytes(facts.down));
    }

    PartCost& attention = of(layer.sliding ? StepPart::kSlidingAttention : StepPart::kFullAttention);
    attention.bytes += rows * 2 * q_bytes;
    const tiles::Mask mask{.causal = true, .window = layer.window};
    double pairs = 0;
    for (const SequenceLoad& sequence : load_.sequences) {
      const int64_t queries = narrowed ? 1 : sequence.query_len;
      const tiles::KeyRange keys = tiles::visible_keys(mask, sequence.kv_len, queries, 0, queries).any;
      attention.bytes += as_double(keys.last - keys.first) * token_bytes;
      for (int64_t i = 0; i < queries; ++i) {
        const tiles::KeyRange seen = tiles::visible_keys(mask, sequence.kv_len, queries, i);
        pairs += as_double(seen.last - seen.first);
      }
    }
    const double flops = pairs * 4 * config_.num_q_heads * layer.head_dim;  // Q K^T and P V, 2 a product
    (layout.dtype == KvDtype::kE4M3 ? attention.fp8_flops : attention.bf16_flops) += flops;
  }

  [[nodiscard]] const std::array<PartCost, kNumStepParts>& all() const { return costs_; }

 private:
  PartCost& of(StepPart part) { return costs_[static_cast<size_t>(part)]; }

  void add_gemm(StepPart part, const LinearFacts& linear, double rows) {
    const double n = as_double(linear.out_features);
    const double k = as_double(linear.in_features);
    PartCost& cost = of(part);
    cost.bytes += input_bytes(linear) * k * (n + rows) + rows * (linear.gated ? n / 2 : n) * kBf16Bytes;
    (linear.fp8 ? cost.fp8_flops : cost.bf16_flops) += 2 * rows * n * k;
  }

  /// hidden += norm(projected): both read, hidden written, and the next linear layer's input.
  void add_residual(double next_input_bytes, double rows) {
    of(StepPart::kNorms).bytes += rows * hidden_ * (3 * kBf16Bytes + next_input_bytes);
  }

  const ModelConfig& config_;
  const StepLoad& load_;
  double tokens_ = 0;
  double hidden_ = 0;
  std::array<PartCost, kNumStepParts> costs_{};
};

}  // namespace

std::string_view part_name(StepPart part) noexcept {
  switch (part) {
    case StepPart::kPrepare: return "prepare";
    case StepPart::kEmbedding: return "embedding";
    case StepPart::kNorms: return "norms";
    case StepPart::kQkvGemm: return "qkv_gemm";
    case StepPart::kQkvAppend: return "qkv_append";
    case StepPart::kSlidingAttention: return "sliding_attention";
    case StepPart::kFullAttention: return "full_attention";
    case StepPart::kQuantize: return "quantize";
    case StepPart::kOutGemm: return "out_gemm";
    case StepPart::kGateUpGemm: return "gate_up_gemm";
    case StepPart::kGeglu: return "geglu";
    case StepPart::kDownGemm: return "down_gemm";
    case StepPart::kLmHead: return "lm_head";
    case StepPart::kSampling: return "sampling";
  }
  return "unknown";
}

int64_t StepLoad::num_tokens() const {
  int64_t tokens = 0;
  for (const SequenceLoad& sequence : sequences) tokens += sequence.query_len;
  return tokens;
}

double least_seconds(const PartCost& cost, const Ceilings& ceilings) {
  const double arithmetic = cost.fp8_flops / ceilings.fp8_flops_per_s + cost.bf16_flops / ceilings.bf16_flops_per_s;
  return std::max(cost.bytes / ceilings.bytes_per_s, arithmetic);
}

std::array<PartCost, kNumStepParts> step_costs(const ModelConfig& config, const std::vector<LayerFacts>& layers,
                                               const CachePlan& plan, const StepLoad& load) {
  check(!layers.empty() && layers.size() == config.layers.size() && plan.places.size() == layers.size(), "layers ",
        layers.size(), ": expected the model's ", config.layers.size(), ", at least 1");
  Costs costs(config, load);
  costs.add_step(layers);
  for (size_t i = 0; i < layers.size(); ++i) {
    const CacheGroup& group = plan.groups[static_cast<size_t>(plan.places[i].group)];
    costs.add_layer(config.layers[i], group.layout, layers[i], i + 1 < layers.size() ? &layers[i + 1] : nullptr);
  }
  return costs.all();
}

std::vector<LayerFacts> layer_facts(const ModelConfig& config, bool fp8) {
  std::vector<LayerFacts> facts;
  for (const LayerConfig& layer : config.layers) {
    const int64_t q_rows = int64_t{config.num_q_heads} * layer.head_dim;
    const int64_t kv_rows = int64_t{layer.num_kv_heads} * layer.head_dim;
    const int64_t hidden = config.hidden_size;
    const int64_t inner = config.intermediate_size;
    const auto linear = [fp8](int64_t n, int64_t k) {
      return LinearFacts{.out_features = n, .in_features = k, .fp8 = fp8};
    };
    facts.push_back({.qkv = linear(q_rows + (layer.k_eq_v ? 1 : 2) * kv_rows, hidden),
                     .out = linear(hidden, q_rows),
                     .gate_up = {.out_features = 2 * inner, .in_features = hidden, .fp8 = fp8, .gated = fp8},
                     .down = linear(hidden, inner)});
  }
  return facts;
}

}  // namespace quaver
