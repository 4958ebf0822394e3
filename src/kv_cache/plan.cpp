// Cache groups: which layers share a block table, and the page sizes that make all pages equal in bytes.
#include <algorithm>

#include "core/check.h"
#include "kv_cache/page_format.h"

namespace quaver {
namespace {

constexpr int kSmallestPage = 16;
constexpr int kLargestPage = 128;

/// Layers with the same needs.
struct Kind {
  LayerCacheSpec spec{};
  std::vector<int> layers;
};

/// Kinds in order of appearance, full attention first.
std::vector<Kind> kinds_of(std::span<const LayerCacheSpec> layers, int block_size) {
  std::vector<Kind> kinds;
  for (const bool full : {true, false}) {
    for (size_t i = 0; i < layers.size(); ++i) {
      LayerCacheSpec spec = layers[i];
      if ((spec.window == 0) != full) continue;
      spec.layout.page_size = block_size;
      check(spec.window >= 0, "window ", spec.window, " of layer ", i, ": expected >= 0");
      check_layout(spec.layout);
      const auto same = [&](const Kind& kind) {
        return kind.spec.layout == spec.layout && kind.spec.window == spec.window;
      };
      auto kind = std::find_if(kinds.begin(), kinds.end(), same);
      if (kind == kinds.end()) kind = kinds.insert(kind, Kind{.spec = spec, .layers = {}});
      kind->layers.push_back(static_cast<int>(i));
    }
  }
  return kinds;
}

/// Layers of the most frequent full-attention kind; of the most frequent kind if no layer has full attention.
int count_slabs(const std::vector<Kind>& kinds) {
  const bool any_full = kinds.front().spec.window == 0;
  size_t slabs = 0;
  for (const Kind& kind : kinds) {
    if ((kind.spec.window == 0) == any_full) slabs = std::max(slabs, kind.layers.size());
  }
  return static_cast<int>(slabs);
}

/// The largest supported page size whose bytes fit in `page_bytes`; at least the block size fits.
int page_size_for(const KvLayout& layout, int64_t page_bytes) {
  int size = kLargestPage;
  while (size > kSmallestPage && page_format::token_bytes(layout) * size > page_bytes) size /= 2;
  return size;
}

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace

CachePlan plan_cache(std::span<const LayerCacheSpec> layers, int block_size) {
  check(!layers.empty(), "cached layers 0: expected at least 1");
  const std::vector<Kind> kinds = kinds_of(layers, block_size);

  CachePlan plan;
  plan.num_slabs = count_slabs(kinds);
  plan.places.resize(layers.size());
  for (const Kind& kind : kinds) plan.page_bytes = std::max(plan.page_bytes, page_format::page_bytes(kind.spec.layout));
  for (const Kind& kind : kinds) {
    KvLayout layout = kind.spec.layout;
    layout.page_size = page_size_for(layout, plan.page_bytes);
    plan.largest_page_tokens = std::max(plan.largest_page_tokens, layout.page_size);
    for (size_t i = 0; i < kind.layers.size(); ++i) {
      const auto slab = static_cast<int>(i % static_cast<size_t>(plan.num_slabs));
      if (slab == 0) {
        plan.groups.push_back({.layout = layout, .window = kind.spec.window, .layers = {}});
        plan.wasted_page_bytes += plan.block_bytes();
      }
      plan.groups.back().layers.push_back(kind.layers[i]);
      plan.wasted_page_bytes -= page_format::page_bytes(layout);
      plan.places[static_cast<size_t>(kind.layers[i])] = {.group = static_cast<int>(plan.groups.size()) - 1,
                                                          .slab = slab};
    }
  }
  return plan;
}

int64_t CachePlan::token_bytes() const {
  int64_t bytes = 0;
  for (const Place& place : places) bytes += page_format::token_bytes(groups[static_cast<size_t>(place.group)].layout);
  return bytes;
}

int64_t CachePlan::blocks_for(int64_t num_tokens, int64_t step_tokens) const {
  check(num_tokens >= 0, "tokens ", num_tokens, ": expected >= 0");
  check(step_tokens >= 1, "tokens a step ", step_tokens, ": expected at least 1");
  int64_t blocks = 0;
  for (const CacheGroup& group : groups) {
    const int64_t page = group.layout.page_size;
    int64_t pages = ceil_div(num_tokens, page);
    if (group.window > 0) {
      const int64_t visible = group.window - 1 + step_tokens;  // keys that a step's queries see
      pages = std::min(pages, ceil_div(visible - 1, page) + 1);
    }
    blocks += pages;
  }
  return blocks;
}

std::string to_string(const CachePlan& plan) {
  std::string text = concat("block of ", plan.num_slabs, " pages x ", plan.page_bytes, " bytes, prefix blocks of ",
                            plan.largest_page_tokens, " tokens\n");
  for (size_t i = 0; i < plan.groups.size(); ++i) {
    const CacheGroup& group = plan.groups[i];
    const KvLayout& layout = group.layout;
    text +=
        concat("group ", i, ": ", group.layers.size(), " layers, ",
               group.window > 0 ? concat("window ", group.window) : "full attention", ", ", layout.num_kv_heads,
               " kv heads x ", layout.head_dim_k, "+", layout.head_dim_v, " ", kv_dtype_name(layout.dtype), ", page ",
               layout.page_size, " tokens, ", page_format::token_bytes(layout), " bytes a token and layer\n");
  }
  const int64_t total = plan.block_bytes() * std::ssize(plan.groups);
  const double percent = 100.0 * static_cast<double>(plan.wasted_page_bytes) / static_cast<double>(total);
  text +=
      concat("waste: ", plan.wasted_page_bytes, " bytes in a block of every group (", fixed_point(percent, 2), " %)\n");
  return text;
}

}  // namespace quaver
