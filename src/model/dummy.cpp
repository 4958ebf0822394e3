// --load-format dummy: random weights of the true shapes. Random bits and not zeros, because a GPU's clock depends on
// how many bits toggle.
#include "model/dummy.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <memory>
#include <new>
#include <numbers>
#include <optional>

#include "core/check.h"
#include "core/e4m3.h"
#include "model/fp8_formats.h"
#include "model/kv_scales.h"
#include "model/matrices.h"

namespace quaver {
namespace {

constexpr float kE4M3Spread = 103.5F;       // deviation of the codes: the largest quantile, 4.33, becomes 448
constexpr float kInputScale = 16 / 448.0F;  // static recipes: normed activations stay below 16

/// Quantiles (i + 0.5) / 65536 of N(0, 1), by Newton's method from the neighbour: on the right half the distribution
/// function is concave, so the steps approach from the left and cannot overshoot.
std::vector<float> normal_quantiles() {
  std::vector<float> quantiles(kDummyTableSize);
  double x = 0;
  for (int i = kDummyTableSize / 2; i < kDummyTableSize; ++i) {
    const double p = (i + 0.5) / kDummyTableSize;
    for (int step = 0; step < 5; ++step) {
      const double density = std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
      x += (p - std::erfc(-x / std::numbers::sqrt2) / 2) / density;
    }
    quantiles[static_cast<size_t>(i)] = static_cast<float>(x);
    quantiles[static_cast<size_t>(kDummyTableSize - 1 - i)] = static_cast<float>(-x);
  }
  return quantiles;
}

template <class T, class Convert>
std::vector<T> convert(const std::vector<float>& quantiles, const Convert& one) {
  std::vector<T> table(quantiles.size());
  std::transform(quantiles.begin(), quantiles.end(), table.begin(), one);
  return table;
}

std::vector<float> ones(int64_t size) {
  return std::vector<float>(static_cast<size_t>(size), 1.0F);
}

class Outline {
 public:
  explicit Outline(const ModelConfig& config)
      : config_(config), recipe_(parse_quant_recipe(config.quantization_json)) {}

  [[nodiscard]] ModelWeights build() const {
    ModelWeights weights;
    weights.embedding = {nullptr, DType::kBF16, {config_.vocab_size, config_.hidden_size}};
    weights.lm_head.weight = weights.embedding;
    weights.lm_head.name = "lm_head";
    weights.final_norm = ones(config_.hidden_size);
    for (size_t index = 0; index < config_.layers.size(); ++index) {
      weights.layers.push_back(layer(config_.layers[index], concat("layers.", index, ".")));
    }
    weights.notes.emplace_back("dummy weights: the text will be nonsense");
    weights.bytes = step_bytes(weights);
    return weights;
  }

 private:
  [[nodiscard]] LinearWeight linear(const std::string& name, int64_t rows, int64_t columns) const {
    LinearWeight linear;
    linear.name = name;
    linear.weight = {nullptr, recipe_ ? DType::kE4M3 : DType::kBF16, {rows, columns}};
    if (!recipe_) return linear;
    linear.activation = recipe_->activation;
    if (linear.activation == ActivationQuant::kPerTensor) linear.input_scale = kInputScale;
    set_uniform_scales(linear, recipe_->weights, 1 / (kE4M3Spread * std::sqrt(static_cast<float>(columns))));
    return linear;
  }

  [[nodiscard]] LayerWeights layer(const LayerConfig& shape, const std::string& name) const {
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
    weights.q = linear(name + "q_proj", q_rows, hidden);
    weights.k = linear(name + "k_proj", kv_rows, hidden);
    if (!shape.k_eq_v) weights.v = linear(name + "v_proj", kv_rows, hidden);
    weights.o = linear(name + "o_proj", hidden, q_rows);
    weights.gate = linear(name + "gate_proj", inner, hidden);
    weights.up = linear(name + "up_proj", inner, hidden);
    weights.down = linear(name + "down_proj", hidden, inner);
    derive_kv_scales(config_, shape, KvScalePolicy::kAuto, weights);
    return weights;
  }

  const ModelConfig& config_;
  const std::optional<QuantRecipe> recipe_;
};

template <class T>
void fill_random(T* out, int64_t count, const std::vector<T>& table, uint64_t stream) {
  const int64_t draws = (count + kDummyDraw - 1) / kDummyDraw;
#pragma omp parallel for schedule(static)
  for (int64_t draw = 0; draw < draws; ++draw) {
    const int64_t end = std::min((draw + 1) * kDummyDraw, count);
    uint64_t bits = dummy_bits(stream, draw);
    for (int64_t i = draw * kDummyDraw; i < end; ++i, bits >>= 16) out[i] = table[bits & 0xFFFFU];
  }
}

/// Blocks of uninitialised memory.
struct Storage {
  std::vector<std::unique_ptr<std::byte[]>> blocks;
};

class MatrixMaker {
 public:
  explicit MatrixMaker(uint64_t seed) : seed_(seed) {}

  /// Gives the view its data.
  void fill(ConstTensorView& matrix) {
    if (matrix.dtype == DType::kE4M3) {
      fill_with(matrix, codes_);
    } else {
      const int64_t columns = matrix.dim(1);
      if (!bf16_.contains(columns)) bf16_.emplace(columns, dummy_bf16(columns));
      fill_with(matrix, bf16_.at(columns));
    }
  }

  [[nodiscard]] std::shared_ptr<void> storage() const { return storage_; }

 private:
  template <class T>
  void fill_with(ConstTensorView& matrix, const std::vector<T>& table) {
    const int64_t count = matrix.num_elements();
    auto& block = storage_->blocks.emplace_back(
        std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(count) * sizeof(T)));
    matrix.data = block.get();
    fill_random(new (block.get()) T[static_cast<size_t>(count)], count, table, dummy_stream(seed_, ++ordinal_));
  }

  const uint64_t seed_;
  int64_t ordinal_ = 0;
  const std::vector<uint8_t> codes_ = dummy_codes();
  std::map<int64_t, std::vector<Bf16>> bf16_;  // by columns
  std::shared_ptr<Storage> storage_ = std::make_shared<Storage>();
};

}  // namespace

std::vector<uint8_t> dummy_codes() {
  return convert<uint8_t>(normal_quantiles(), [](float quantile) { return e4m3_encode(quantile * kE4M3Spread); });
}

std::vector<Bf16> dummy_bf16(int64_t columns) {
  const float deviation = 1 / std::sqrt(static_cast<float>(columns));
  return convert<Bf16>(normal_quantiles(), [&](float quantile) { return to_bf16(quantile * deviation); });
}

std::vector<Bf16> dummy_widened(const LinearWeight& weight) {
  const float scale = weight.scale.front();
  return convert<Bf16>(normal_quantiles(), [&](float quantile) {
    return to_bf16(e4m3_decode(e4m3_encode(quantile * kE4M3Spread)) * scale);
  });
}

ModelWeights dummy_outline(const ModelConfig& config) {
  return Outline(config).build();
}

ModelWeights dummy_weights(const ModelConfig& config, uint64_t seed) {
  try {
    ModelWeights weights = dummy_outline(config);
    MatrixMaker maker(seed);
    maker.fill(weights.embedding);
    if (config.tie_embeddings) {
      weights.lm_head.weight = weights.embedding;
    } else {
      maker.fill(weights.lm_head.weight);
    }
    for (LayerWeights& layer : weights.layers) {
      for (LinearWeight* linear : matrices(layer)) {
        if (linear->weight.rank > 0) maker.fill(linear->weight);
      }
    }
    weights.storage = maker.storage();
    return weights;
  } catch (const std::bad_alloc&) {
    fail(ErrorKind::kOutOfMemory, "dummy weights of ", config.num_layers, " layers with hidden size ",
         config.hidden_size, ": expected enough host memory");
  }
}

}  // namespace quaver
