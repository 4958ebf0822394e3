// The rotations of a model: few, though every layer has one.
#pragma once

#include <cstddef>
#include <vector>

#include "ops/rope.h"
#include "quaver/model.h"

namespace quaver {

struct ModelRopes {
  std::vector<RopeShape> shapes;  ///< distinct ones, in order of their first layer
  std::vector<size_t> of_layer;   ///< [layers]: index into shapes
};

[[nodiscard]] ModelRopes model_ropes(const ModelConfig& config);

}  // namespace quaver
