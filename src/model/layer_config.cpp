#include "model/layer_config.h"

#include <array>
#include <string>

#include "core/check.h"
#include "model/rope_config.h"

namespace quaver {
namespace {

constexpr Range<int> kHeadDimRange{.low = 2, .high = 1024};
constexpr Range<int> kHeadsRange{.low = 1, .high = 4096};

/// True per layer where attention slides.
std::vector<bool> read_layer_types(const Fields& text, const ModelConfig& config) {
  std::vector<bool> sliding;
  if (const Json* types = text.find("layer_types")) {
    check(types->is_array() && types->size() == static_cast<size_t>(config.num_layers), text.path("layer_types"),
          types->is_array() ? concat(" with ", types->size(), " entries") : concat(" ", printable(*types)),
          ": expected a list of num_hidden_layers = ", config.num_layers, " entries");
    for (const Json& type : *types) {
      check(type == "sliding_attention" || type == "full_attention", text.path("layer_types"), " ", printable(type),
            ": expected sliding_attention or full_attention");
      sliding.push_back(type == "sliding_attention");
    }
  } else {
    constexpr Range<int> kPatternRange{.low = 1, .high = 1024};
    const int pattern = text.integer32("sliding_window_pattern", kPatternRange,
                                       text.integer32("_sliding_window_pattern", kPatternRange, 6));
    for (int layer = 0; layer < config.num_layers; ++layer) sliding.push_back((layer + 1) % pattern != 0);
  }
  // The reference forces Gemma 4's last layer to full attention, whatever the file says.
  if (config.family == ModelFamily::kGemma4) sliding.back() = false;
  return sliding;
}

/// Head dim and kv heads of Gemma 4's full layers, or of one layer of `per_layer_config`.
struct Heads {
  int dim = 0;
  int kv = 0;
};

/// transformers >= 5.17 saves {"5": {"head_dim": 512, "num_key_value_heads": 4}, …} in place of `global_head_dim` and
/// `num_global_key_value_heads`; what equals the general value is left out.
void apply_per_layer_config(const Fields& overrides, std::vector<Heads>& heads) {
  for (const auto& [key, value] : overrides.json().items()) {
    const bool digits = !key.empty() && key.size() <= 4 && key.find_first_not_of("0123456789") == std::string::npos;
    const size_t layer = digits ? std::stoul(key) : heads.size();
    check(layer < heads.size(), overrides.path(""), " key ", printable(key), ": expected a layer index below ",
          heads.size());
    const Fields fields(value, overrides.path(key));
    for (const auto& [name, ignored] : value.items()) {
      check_as(ErrorKind::kUnsupported, name == "head_dim" || name == "num_key_value_heads", fields.path(""), " field ",
               printable(name), ": expected head_dim or num_key_value_heads");
    }
    heads[layer].dim = fields.integer32("head_dim", kHeadDimRange, heads[layer].dim);
    heads[layer].kv = fields.integer32("num_key_value_heads", kHeadsRange, heads[layer].kv);
  }
}

std::vector<Heads> read_heads(const Fields& text, const ModelConfig& config, const std::vector<bool>& sliding,
                              bool k_eq_v) {
  const Heads general{.dim = text.integer32("head_dim", kHeadDimRange, 256),
                      .kv = text.integer32("num_key_value_heads", kHeadsRange, 4)};
  std::vector<Heads> heads(sliding.size(), general);
  if (config.family == ModelFamily::kGemma3) return heads;
  if (const auto overrides = text.object("per_layer_config")) {
    apply_per_layer_config(*overrides, heads);
    return heads;
  }
  Heads full{.dim = text.integer32("global_head_dim", kHeadDimRange, 512), .kv = general.kv};
  if (k_eq_v) full.kv = text.integer32("num_global_key_value_heads", kHeadsRange, general.kv);
  for (size_t layer = 0; layer < heads.size(); ++layer) {
    if (!sliding[layer]) heads[layer] = full;
  }
  return heads;
}

}  // namespace

std::vector<LayerConfig> read_layers(const Fields& text, const ModelConfig& config) {
  const bool gemma3 = config.family == ModelFamily::kGemma3;
  const bool k_eq_v = !gemma3 && text.boolean("attention_k_eq_v", false);
  const bool vision = !gemma3 && text.string("use_bidirectional_attention", "") == "vision";
  const std::vector<bool> sliding = read_layer_types(text, config);
  const std::vector<Heads> heads = read_heads(text, config, sliding, k_eq_v);
  const int window = text.integer32("sliding_window", {.low = 1, .high = 1 << 30}, gemma3 ? 4096 : 512);
  const std::array<RopeConfig, 2> ropes = {read_rope(text, config.family, false), read_rope(text, config.family, true)};
  std::vector<LayerConfig> layers;
  for (size_t index = 0; index < sliding.size(); ++index) {
    const auto [dim, kv] = heads[index];
    const bool full = !gemma3 && !sliding[index];
    check(dim % 2 == 0, text.path(full ? "global_head_dim" : "head_dim"), " ", dim, " of layer ", index,
          ": expected an even number");
    check(config.num_q_heads % kv == 0, text.path(full ? "num_global_key_value_heads" : "num_key_value_heads"), " ", kv,
          " of layer ", index, ": expected a divisor of num_attention_heads = ", config.num_q_heads);
    const RopeConfig& rope = ropes.at(sliding[index] ? 1 : 0);
    layers.push_back({.sliding = sliding[index],
                      .window = sliding[index] ? window : 0,
                      .head_dim = dim,
                      .num_kv_heads = kv,
                      .bidirectional_spans = gemma3 || (sliding[index] && vision),
                      .k_eq_v = k_eq_v && !sliding[index],
                      .rope_theta = rope.theta,
                      .rope_factor = rope.factor,
                      .rotary_pairs = rope.rotary_pairs(dim)});
  }
  return layers;
}

}  // namespace quaver
