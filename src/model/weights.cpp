#include "model/weights.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "core/check.h"
#include "model/fp8_formats.h"
#include "model/kv_scales.h"
#include "model/matrices.h"
#include "model/safetensors.h"

namespace quaver {
namespace {

using Shape = std::vector<int64_t>;

/// What the views of ModelWeights point into.
struct Storage {
  std::vector<std::shared_ptr<const MappedFile>> files;
  std::vector<std::vector<std::byte>> aligned;  ///< copies of matrices that the file stores unaligned
};

std::string shape_text(const Shape& shape) {
  return to_string(StoredTensor{.dtype = "expected", .shape = shape, .data = {}, .file = {}})
      .substr(std::strlen("expected "));
}

/// Text models sit below one of these, depending on class and age of the file.
std::string find_prefix(const Checkpoint& checkpoint) {
  for (const char* prefix : {"model.language_model.", "language_model.model.", "model."}) {
    if (checkpoint.tensors.contains(concat(prefix, "embed_tokens.weight"))) return prefix;
  }
  return "model.";
}

class Loader {
 public:
  Loader(Checkpoint checkpoint, const ModelConfig& config)
      : checkpoint_(std::move(checkpoint)),
        config_(config),
        recipe_(parse_quant_recipe(config.quantization_json)),
        prefix_(find_prefix(checkpoint_)),
        storage_(std::make_shared<Storage>()) {
    storage_->files = checkpoint_.files;
  }

  ModelWeights load(KvScalePolicy policy) {
    ModelWeights weights;
    weights.notes = checkpoint_.notes;
    const std::string embedding = prefix_ + "embed_tokens.weight";
    if (const StoredTensor* stored = require(embedding)) {
      weights.embedding = matrix(*stored, embedding, config_.vocab_size, config_.hidden_size);
      check(weights.embedding.dtype != DType::kE4M3, embedding, " ", to_string(*stored),
            ": expected dtype BF16 or F32");
    }
    load_head(weights);
    weights.final_norm = norm("norm", config_.hidden_size);
    int without_scales = 0;
    for (int index = 0; index < config_.num_layers; ++index) {
      LayerWeights& layer = weights.layers.emplace_back(load_layer(index));
      if (!missing_.empty()) continue;
      const LayerConfig& shape = config_.layers[static_cast<size_t>(index)];
      derive_kv_scales(config_, shape, policy, layer);
      if (policy == KvScalePolicy::kOne) continue;
      const std::string attention = prefix_ + concat("layers.", index, ".self_attn");
      if (!load_kv_scales([this](const auto& name) { return find(name); }, attention, shape.num_kv_heads, layer)) {
        ++without_scales;
      }
    }
    check_missing();
    if (without_scales > 0) {
      weights.notes.push_back(concat("FP8 cache scales: ", without_scales, " of ", config_.num_layers,
                                     " layers have none in the checkpoint; K scales follow from the norm weights, V ",
                                     config_.family == ModelFamily::kGemma4 ? "scales from its norm" : "scales are 1"));
    }
    note_unused(weights);
    weights.bytes = step_bytes(weights);
    weights.storage = storage_;
    return weights;
  }

 private:
  const StoredTensor* find(const std::string& name) {
    const auto found = checkpoint_.tensors.find(name);
    if (found == checkpoint_.tensors.end()) return nullptr;
    used_.insert(found->first);
    return &found->second;
  }

  /// Null when missing; check_missing() then reports all of them in one error.
  const StoredTensor* require(const std::string& name) {
    const StoredTensor* stored = find(name);
    if (stored == nullptr) missing_.push_back(name);
    return stored;
  }

  void check_missing() const {
    if (missing_.empty()) return;
    std::string names;
    for (const auto& name : missing_) names += (names.empty() ? "" : ", ") + name;
    fail(ErrorKind::kNotFound, "checkpoint lacks ", missing_.size(), " tensors: expected ", names);
  }

  /// A view of a stored matrix, in place unless it is not aligned to its elements.
  ConstTensorView matrix(const StoredTensor& stored, const std::string& name, int64_t rows, int64_t columns) {
    constexpr std::array<std::pair<std::string_view, DType>, 3> kTypes = {
        {{"F32", DType::kF32}, {"BF16", DType::kBF16}, {"F8_E4M3", DType::kE4M3}}};
    const auto* type =
        std::find_if(kTypes.begin(), kTypes.end(), [&](const auto& pair) { return pair.first == stored.dtype; });
    check(type != kTypes.end() && stored.shape == Shape{rows, columns}, name, " ", to_string(stored),
          ": expected BF16, F32 or F8_E4M3 ", shape_text({rows, columns}));
    const void* data = stored.data.data();
    if (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(dtype_bytes(type->second)) != 0) {
      data = storage_->aligned.emplace_back(stored.data.begin(), stored.data.end()).data();
    }
    return {data, type->second, {rows, columns}};
  }

  LinearWeight linear(const std::string& module, int64_t rows, int64_t columns) {
    LinearWeight linear;
    const std::string name = module + ".weight";
    const StoredTensor* stored = require(name);
    if (stored == nullptr) return linear;
    linear.name = name + in_file(*stored);
    linear.weight = matrix(*stored, name, rows, columns);
    if (linear.weight.dtype == DType::kE4M3) load_scales(module, linear);
    return linear;
  }

  void load_scales(const std::string& module, LinearWeight& linear) {
    if (!recipe_) {
      fail(ErrorKind::kUnsupported, linear.name, " F8_E4M3: expected a quantization_config in config.json");
    }
    linear.activation = recipe_->activation;
    const std::string inverse = module + ".weight_scale_inv";  // a multiplier too, despite its name
    const bool has_inverse = checkpoint_.tensors.contains(inverse);
    const std::string name = has_inverse ? inverse : module + ".weight_scale";
    if (const StoredTensor* stored = require(name)) set_weight_scales(linear, *stored, name);
    if (linear.activation != ActivationQuant::kPerTensor) return;
    const std::string older = module + ".activation_scale";
    const std::string input = checkpoint_.tensors.contains(older) ? older : module + ".input_scale";
    if (const StoredTensor* stored = require(input)) {
      const std::vector<float> values = read_scales(*stored, input);
      check(values.size() == 1, input, " ", to_string(*stored), ": expected one value");
      linear.input_scale = values.front();
    }
  }

  /// Effective multipliers: Gemma 3 stores them minus one.
  std::vector<float> norm(const std::string& module, int64_t size) {
    const std::string name = prefix_ + module + ".weight";
    const StoredTensor* stored = require(name);
    if (stored == nullptr) return {};
    check(stored->shape == Shape{size}, name, " ", to_string(*stored), ": expected BF16 or F32 ", shape_text({size}));
    std::vector<float> values = read_floats(*stored, name);
    const float offset = config_.family == ModelFamily::kGemma3 ? 1.0F : 0.0F;
    for (float& value : values) {
      check(std::isfinite(value), name, " ", value, in_file(*stored), ": expected finite values");
      value += offset;
    }
    return values;
  }

  float scalar(const std::string& name) {
    const StoredTensor* stored = require(name);
    if (stored == nullptr) return 1.0F;
    const std::vector<float> values = read_floats(*stored, name);
    check(values.size() == 1 && std::isfinite(values.front()), name, " ", to_string(*stored),
          ": expected one finite value");
    return values.front();
  }

  LayerWeights load_layer(int index) {
    const LayerConfig& shape = config_.layers[static_cast<size_t>(index)];
    const int64_t hidden = config_.hidden_size;
    const int64_t inner = config_.intermediate_size;
    const int64_t q_rows = int64_t{config_.num_q_heads} * shape.head_dim;
    const int64_t kv_rows = int64_t{shape.num_kv_heads} * shape.head_dim;
    const std::string layer = concat("layers.", index, ".");
    const std::string attention = prefix_ + layer + "self_attn.";
    const std::string mlp = prefix_ + layer + "mlp.";
    LayerWeights weights;
    weights.input_norm = norm(layer + "input_layernorm", hidden);
    weights.post_attention_norm = norm(layer + "post_attention_layernorm", hidden);
    weights.pre_feedforward_norm = norm(layer + "pre_feedforward_layernorm", hidden);
    weights.post_feedforward_norm = norm(layer + "post_feedforward_layernorm", hidden);
    weights.q_norm = norm(layer + "self_attn.q_norm", shape.head_dim);
    weights.k_norm = norm(layer + "self_attn.k_norm", shape.head_dim);
    weights.q = linear(attention + "q_proj", q_rows, hidden);
    weights.k = linear(attention + "k_proj", kv_rows, hidden);
    if (shape.k_eq_v) {
      check(!checkpoint_.tensors.contains(attention + "v_proj.weight"), attention,
            "v_proj.weight: expected none, attention_k_eq_v takes V from k_proj on full layers");
    } else {
      weights.v = linear(attention + "v_proj", kv_rows, hidden);
    }
    weights.o = linear(attention + "o_proj", hidden, q_rows);
    weights.gate = linear(mlp + "gate_proj", inner, hidden);
    weights.up = linear(mlp + "up_proj", inner, hidden);
    weights.down = linear(mlp + "down_proj", hidden, inner);
    if (config_.family == ModelFamily::kGemma4) weights.layer_scalar = scalar(prefix_ + layer + "layer_scalar");
    return weights;
  }

  /// config.json decides whether the head is tied, not the presence of the tensor (B45).
  void load_head(ModelWeights& weights) {
    std::string module = "lm_head";
    for (const char* name : {"language_model.lm_head", "model.language_model.lm_head"}) {
      if (checkpoint_.tensors.contains(concat(name, ".weight"))) module = name;
    }
    if (!config_.tie_embeddings) {
      weights.lm_head = linear(module, config_.vocab_size, config_.hidden_size);
      return;
    }
    weights.lm_head.weight = weights.embedding;
    if (const StoredTensor* stored = find(prefix_ + "embed_tokens.weight")) {
      weights.lm_head.name = prefix_ + "embed_tokens.weight" + in_file(*stored);
    }
    const StoredTensor* head = find(module + ".weight");
    const StoredTensor* embedding = find(prefix_ + "embed_tokens.weight");
    if (head == nullptr || embedding == nullptr) return;
    const bool equal = head->dtype == embedding->dtype && head->data.size() == embedding->data.size() &&
                       std::memcmp(head->data.data(), embedding->data.data(), head->data.size()) == 0;
    if (!equal) {
      weights.notes.push_back(concat("ignored ", module, ".weight, which differs from the embedding: ",
                                     "tie_word_embeddings says that the embedding is the head"));
    }
  }

  void note_unused(ModelWeights& weights) const {
    int count = 0;
    std::string first;
    for (const auto& [name, tensor] : checkpoint_.tensors) {
      if (!name.starts_with(prefix_ + "layers.") || used_.contains(name)) continue;
      if (count++ == 0) first = name;
    }
    if (count > 0) weights.notes.push_back(concat("ignored ", count, " unknown tensors of the layers, first ", first));
  }

  const Checkpoint checkpoint_;
  const ModelConfig& config_;
  const std::optional<QuantRecipe> recipe_;
  const std::string prefix_;
  std::shared_ptr<Storage> storage_;
  std::set<std::string, std::less<>> used_;
  std::vector<std::string> missing_;
};

}  // namespace

ModelWeights load_weights(Checkpoint checkpoint, const ModelConfig& config, KvScalePolicy kv_scales) {
  return Loader(std::move(checkpoint), config).load(kv_scales);
}

ModelWeights load_weights(const std::filesystem::path& directory, const ModelConfig& config, KvScalePolicy kv_scales) {
  return load_weights(open_checkpoint(directory), config, kv_scales);
}

int64_t step_bytes(const ModelWeights& weights) {
  int64_t bytes = 0;
  const auto add = [&](const LinearWeight& linear) {
    if (linear.weight.rank == 2) bytes += linear.weight.num_elements() * dtype_bytes(linear.weight.dtype);
  };
  add(weights.lm_head);
  for (const LayerWeights& layer : weights.layers) {
    for (const LinearWeight* linear : matrices(layer)) add(*linear);
  }
  return bytes;
}

}  // namespace quaver
