#include "core/check.h"
#include "kv_cache/page_format.h"

namespace quaver {

void check_layout(const KvLayout& layout) {
  check(page_format::page_size_supported(layout.page_size), "page size ", layout.page_size,
        ": expected 16, 32, 64 or 128 tokens");
  check(layout.num_kv_heads > 0, "kv heads ", layout.num_kv_heads, ": expected at least 1");
  for (const int dim : {layout.head_dim_k, layout.head_dim_v}) {
    check(dim > 0 && (layout.dtype == KvDtype::kBF16 || dim % 16 == 0), "head dim ", dim, ": expected a positive ",
          layout.dtype == KvDtype::kBF16 ? "number" : "multiple of 16 in an FP8 cache");
  }
}

}  // namespace quaver
