// Small cache plans.
#pragma once

#include <vector>

#include "quaver/kv_cache.h"

namespace quaver::testing {

struct Kind {
  int num_kv_heads = 1;
  int window = 0;
};

/// One layer of each kind; kv heads decide the page sizes (half the heads, twice the tokens).
inline CachePlan plan_of(const std::vector<Kind>& kinds, int block_size = 16) {
  std::vector<LayerCacheSpec> layers;
  for (const Kind& kind : kinds) {
    layers.push_back(
        {.layout = {.num_kv_heads = kind.num_kv_heads, .head_dim_k = 16, .head_dim_v = 16}, .window = kind.window});
  }
  return plan_cache(layers, block_size);
}

}  // namespace quaver::testing
