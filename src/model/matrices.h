// The matrices of a layer in the one order that numbers the random streams of dummy weights.
#pragma once

#include <array>

#include "model/weights.h"

namespace quaver {

/// Layer: LayerWeights, const or not. v is not given on K=V layers.
template <class Layer>
[[nodiscard]] auto matrices(Layer& layer) {
  return std::array{&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down};
}

}  // namespace quaver
