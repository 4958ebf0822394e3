#include "core/bf16.h"
#include "core/check.h"
#include "ops/embedding.h"

namespace quaver {

void embed_tokens(const ConstTensorView& table, std::span<const int32_t> token_ids, double scale, float* out) {
  check(table.rank == 2 && table.stride(1) == 1 && (table.dtype == DType::kF32 || table.dtype == DType::kBF16),
        "embedding ", to_string(table), ": expected [vocab, hidden] in f32 or bf16");
  const int64_t hidden = table.dim(1);
  const auto factor = static_cast<float>(scale);
  for (const int32_t id : token_ids) {
    check(id >= 0 && id < table.dim(0), "token id ", id, ": expected 0 to ", table.dim(0) - 1);
    const int64_t row = id * table.stride(0);
    for (int64_t i = 0; i < hidden; ++i) {
      const float value = table.dtype == DType::kF32 ? static_cast<const float*>(table.data)[row + i]
                                                     : to_float(static_cast<const Bf16*>(table.data)[row + i]);
      *out++ = value * factor;
    }
  }
}

}  // namespace quaver
