// --load-format dummy: random weights of the true shapes. N(0, 1/sqrt(inputs)) keeps every activation O(1); random bits
// and not zeros, because a GPU's clock depends on how many bits toggle.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <new>
#include <numbers>
#include <optional>

#include "core/bf16.h"
#include "core/check.h"
#include "core/e4m3.h"
#include "model/fp8_formats.h"
#include "model/kv_scales.h"
#include "model/weights.h"

namespace quaver {
namespace {

constexpr int kQuantiles = 65536;
constexpr int64_t kChunk = 65536;           // elements that one random stream fills; independent of the thread count
constexpr float kE4M3Spread = 64.0F;        // stored codes are N(0, 64): the largest quantile, 4.3, stays below 448
constexpr float kInputScale = 16 / 448.0F;  // static recipes: normed activations stay below 16

/// Quantiles (i + 0.5) / 65536 of N(0, 1), by Newton's method from the neighbour: on the right half the distribution
/// function is concave, so the steps approach from the left and cannot overshoot.
std::vector<float> normal_quantiles() {
  std::vector<float> quantiles(kQuantiles);
  double x = 0;
  for (int i = kQuantiles / 2; i < kQuantiles; ++i) {
    const double p = (i + 0.5) / kQuantiles;
    for (int step = 0; step < 5; ++step) {
      const double density = std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
      x += (p - std::erfc(-x / std::numbers::sqrt2) / 2) / density;
    }
    quantiles[static_cast<size_t>(i)] = static_cast<float>(x);
    quantiles[static_cast<size_t>(kQuantiles - 1 - i)] = static_cast<float>(-x);
  }
  return quantiles;
}

/// SplitMix64 (Steele, Lea, Flood 2014): a counter in, 64 well mixed bits out.
constexpr uint64_t kGolden = 0x9E3779B97F4A7C15U;
uint64_t mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9U;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBU;
  return value ^ (value >> 31);
}

template <class T>
void fill_random(T* out, int64_t count, const std::vector<T>& table, uint64_t seed) {
#pragma omp parallel for schedule(static)
  for (int64_t begin = 0; begin < count; begin += kChunk) {
    const int64_t end = std::min(begin + kChunk, count);
    uint64_t state = mix(seed + static_cast<uint64_t>(begin / kChunk) * kGolden);
    for (int64_t i = begin; i < end; i += 4) {
      uint64_t bits = mix(state += kGolden);
      for (int64_t j = i; j < std::min(i + 4, end); ++j, bits >>= 16) out[j] = table[bits & 0xFFFFU];
    }
  }
}

/// Blocks of uninitialised memory.
struct Storage {
  std::vector<std::unique_ptr<std::byte[]>> blocks;
};

class Generator {
 public:
  Generator(const ModelConfig& config, uint64_t seed)
      : config_(config), recipe_(parse_quant_recipe(config.quantization_json)), seed_(seed) {}

  ModelWeights generate() {
    ModelWeights weights;
    weights.embedding = bf16_matrix(config_.vocab_size, config_.hidden_size);
    weights.lm_head.weight =
        config_.tie_embeddings ? weights.embedding : bf16_matrix(config_.vocab_size, config_.hidden_size);
    weights.bytes = weights.embedding.num_elements() * dtype_bytes(DType::kBF16);
    weights.final_norm = ones(config_.hidden_size);
    for (const LayerConfig& shape : config_.layers) weights.layers.push_back(layer(shape, weights.bytes));
    weights.notes.emplace_back("dummy weights: the text will be nonsense");
    weights.storage = storage_;
    return weights;
  }

 private:
  static std::vector<float> ones(int64_t size) { return std::vector<float>(static_cast<size_t>(size), 1.0F); }

  template <class T>
  const void* random_block(int64_t count, const std::vector<T>& table) {
    auto& block = storage_->blocks.emplace_back(
        std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(count) * sizeof(T)));
    fill_random(new (block.get()) T[static_cast<size_t>(count)], count, table, mix(seed_ + storage_->blocks.size()));
    return block.get();
  }

  ConstTensorView bf16_matrix(int64_t rows, int64_t columns) {
    const float deviation = 1 / std::sqrt(static_cast<float>(columns));
    std::vector<Bf16> table(kQuantiles);
    std::transform(quantiles_.begin(), quantiles_.end(), table.begin(),
                   [&](float quantile) { return to_bf16(quantile * deviation); });
    return {random_block(rows * columns, table), DType::kBF16, {rows, columns}};
  }

  LinearWeight linear(int64_t rows, int64_t columns, int64_t& bytes) {
    LinearWeight linear;
    if (!recipe_) {
      linear.weight = bf16_matrix(rows, columns);
      bytes += rows * columns * dtype_bytes(DType::kBF16);
      return linear;
    }
    std::vector<uint8_t> table(kQuantiles);
    std::transform(quantiles_.begin(), quantiles_.end(), table.begin(),
                   [](float quantile) { return e4m3_encode(quantile * kE4M3Spread); });
    linear.weight = {random_block(rows * columns, table), DType::kE4M3, {rows, columns}};
    bytes += rows * columns;
    linear.activation = recipe_->activation;
    if (linear.activation == ActivationQuant::kPerTensor) linear.input_scale = kInputScale;
    set_uniform_scales(linear, recipe_->weights, 1 / (kE4M3Spread * std::sqrt(static_cast<float>(columns))));
    return linear;
  }

  LayerWeights layer(const LayerConfig& shape, int64_t& bytes) {
    const int64_t hidden = config_.hidden_size;
    const int64_t inner = config_.intermediate_size;
    const int64_t q_rows = int64_t{config_.num_q_heads} * shape.head_dim;
    const int64_t kv_rows = int64_t{shape.num_kv_heads} * shape.head_dim;
    LayerWeights weights;
    weights.input_norm = weights.post_attention_norm = ones(hidden);
    weights.pre_feedforward_norm = weights.post_feedforward_norm = ones(hidden);
    weights.k_norm = ones(shape.head_dim);
    // Logits ~ N(0, 1) under either family's attention scale: with all ones Gemma 4's would have a deviation of
    // sqrt(D).
    const double q_multiplier = 1 / (config_.attention_scale * std::sqrt(static_cast<double>(shape.head_dim)));
    weights.q_norm.assign(static_cast<size_t>(shape.head_dim), static_cast<float>(q_multiplier));
    weights.q = linear(q_rows, hidden, bytes);
    weights.k = linear(kv_rows, hidden, bytes);
    if (!shape.k_eq_v) weights.v = linear(kv_rows, hidden, bytes);
    weights.o = linear(hidden, q_rows, bytes);
    weights.gate = linear(inner, hidden, bytes);
    weights.up = linear(inner, hidden, bytes);
    weights.down = linear(hidden, inner, bytes);
    derive_kv_scales(config_, shape, KvScalePolicy::kAuto, weights);
    return weights;
  }

  const ModelConfig& config_;
  const std::optional<QuantRecipe> recipe_;
  const uint64_t seed_;
  const std::vector<float> quantiles_ = normal_quantiles();
  std::shared_ptr<Storage> storage_ = std::make_shared<Storage>();
};

}  // namespace

ModelWeights dummy_weights(const ModelConfig& config, uint64_t seed) {
  try {
    return Generator(config, seed).generate();
  } catch (const std::bad_alloc&) {
    fail(ErrorKind::kOutOfMemory, "dummy weights of ", config.num_layers, " layers with hidden size ",
         config.hidden_size, ": expected enough host memory");
  }
}

}  // namespace quaver
