#include "model/ropes.h"

#include <algorithm>

namespace quaver {

ModelRopes model_ropes(const ModelConfig& config) {
  ModelRopes ropes;
  for (const LayerConfig& layer : config.layers) {
    const RopeShape shape{.head_dim = layer.head_dim,
                          .rotary_pairs = layer.rotary_pairs,
                          .theta = layer.rope_theta,
                          .factor = layer.rope_factor};
    const auto known = std::ranges::find(ropes.shapes, shape);
    ropes.of_layer.push_back(static_cast<size_t>(known - ropes.shapes.begin()));
    if (known == ropes.shapes.end()) ropes.shapes.push_back(shape);
  }
  return ropes;
}

}  // namespace quaver
