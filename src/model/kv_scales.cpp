#include "model/kv_scales.h"

#include <algorithm>
#include <array>

#include "core/check.h"
#include "kv_cache/scales.h"
#include "model/fp8_formats.h"

namespace quaver {
namespace {

/// `which` is "k" or "v". Leaves `scales` as it is when no spelling is there.
bool load_one(const TensorFinder& find, const std::string& attention, const std::string& which,
              std::vector<float>& scales) {
  const std::array<std::string, 6> spellings = {
      "." + which + "_scale",                     // compressed-tensors
      ".attn." + which + "_scale",                // vLLM's own
      "." + which + "_proj." + which + "_scale",  // modelopt, also where K=V layers have no v_proj
      "." + which + "_proj.output_scale",         // Quark
      ".kv_scale",                                // AutoFP8: one for both
      ".attn.kv_scale",
  };
  for (const auto& spelling : spellings) {
    const std::string name = attention + spelling;
    const StoredTensor* tensor = find(name);
    if (tensor == nullptr) continue;
    const std::vector<float> values = read_floats(*tensor, name);
    check(values.size() == 1 || values.size() == scales.size(), name, " ", to_string(*tensor),
          ": expected one value, or one for each of ", scales.size(), " kv heads");
    for (size_t head = 0; head < scales.size(); ++head) {
      scales[head] = values[values.size() == 1 ? 0 : head];
      check_scale(name + in_file(*tensor), scales[head]);
    }
    return true;
  }
  return false;
}

}  // namespace

void derive_kv_scales(const ModelConfig& config, const LayerConfig& shape, KvScalePolicy policy, LayerWeights& layer) {
  const bool derive = policy == KvScalePolicy::kAuto;
  const bool normed_v = config.family == ModelFamily::kGemma4;
  const auto heads = static_cast<size_t>(shape.num_kv_heads);
  layer.k_scale.assign(heads, derive ? derived_k_scale(layer.k_norm) : 1.0F);
  layer.v_scale.assign(heads, derive && normed_v ? derived_v_scale(shape.head_dim) : 1.0F);
}

bool load_kv_scales(const TensorFinder& find, const std::string& attention, int num_kv_heads, LayerWeights& layer) {
  layer.k_scale.resize(static_cast<size_t>(num_kv_heads), 1.0F);
  layer.v_scale.resize(static_cast<size_t>(num_kv_heads), 1.0F);
  const bool k = load_one(find, attention, "k", layer.k_scale);
  const bool v = load_one(find, attention, "v", layer.v_scale);
  return k && v;
}

}  // namespace quaver
