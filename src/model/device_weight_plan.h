// Which rows of which checkpoint matrix go where in GPU memory. Pure: no CUDA, the same plan for a checkpoint and for a
// model without matrices (dummy weights, memory figures).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gemm/packed_fp8/layout.h"
#include "gemm/packed_fp8/plan.h"
#include "gemm/weight_format.h"
#include "model/weights.h"
#include "quaver/model.h"

namespace quaver {

/// Rows of one stored matrix inside a device weight.
struct WeightPart {
  LinearWeight source;       ///< its view points into ModelWeights::storage, or has no data
  int64_t first_row = 0;     ///< of the device weight
  int64_t ordinal = 0;       ///< among the matrices of the model (dummy_stream)
  int64_t group_stride = 1;  ///< groups of 8 rows from one to the next: 2 where gate and up take turns
  [[nodiscard]] int64_t packed_row(int64_t row) const { return packed_fp8::part_row(first_row, row, group_stride); }
};

/// Values in DeviceWeightPlan::floats.
struct FloatSpan {
  int64_t begin = 0;
  int64_t size = 0;
};

/// One weight of the GPU: q, k and v are one, gate and up are one (with scales by row, 8 rows of each in turn),
/// everything else is itself.
struct PlannedWeight {
  std::string name;  ///< "layers.3.qkv"
  WeightFormat format = WeightFormat::kBf16;
  int64_t n = 0;
  int64_t k = 0;
  InputKind input = InputKind::kBf16;
  float static_scale = 1.0F;
  bool gated = false;  ///< groups of 8 rows of the two parts take turns (DeviceMatrix)
  std::vector<WeightPart> parts{};
  FloatSpan scales{};  ///< kOuter: [N]; kBlock: [ceil(N/128), ceil(K/128)]
  int64_t offset = 0;  ///< bytes from the start of the device memory, a multiple of 256
  int64_t bytes = 0;   ///< padding of the packed layout included
};

struct PlannedLayer {
  PlannedWeight qkv, o, gate_up, down;
  FloatSpan input_norm, post_attention_norm, pre_feedforward_norm, post_feedforward_norm, q_norm, k_norm;
  FloatSpan k_scale, v_scale;
  float layer_scalar = 1.0F;
};

struct DeviceWeightPlan {
  PlannedWeight embedding;               ///< BF16
  std::optional<PlannedWeight> lm_head;  ///< unless it is the embedding
  FloatSpan final_norm;
  std::vector<PlannedLayer> layers;
  std::vector<float> floats;  ///< norms and scales; every span begins on a multiple of 64 values (256 bytes)
  int64_t floats_offset = 0;  ///< bytes from the start of the device memory
  int64_t bytes = 0;          ///< of device memory
  std::vector<std::string> notes;
  packed_fp8::SumOrder order = packed_fp8::SumOrder::kAny;  ///< of the products
};

/// Per-tensor scales become one a row; parts of one weight with different static input scales share the largest, which
/// clips nowhere. FP8 weights without a recipe for activations are widened to BF16. Throws Error(kUnsupported) naming
/// the tensor and its file for what the GPU has no product for: parts of one weight that differ in kind, block scales
/// whose parts do not begin on a multiple of 128 rows, activation and weight scales that do not go together.
/// `order`: in fixed order gate and up do not take turns, since the product with the gate has none.
[[nodiscard]] DeviceWeightPlan plan_device_weights(const ModelWeights& weights, const ModelConfig& config,
                                                   packed_fp8::SumOrder order = packed_fp8::SumOrder::kAny);

/// BF16 rows [first_row, first_row + num_rows) of a stored matrix: F32 and FP8 times its scale are rounded to nearest.
void widen_to_bf16(const LinearWeight& source, int64_t first_row, int64_t num_rows, Bf16* out);

/// Rows of a chunk of about `chunk_bytes`, at least one; a multiple of 8 where that many fit.
[[nodiscard]] int64_t rows_per_chunk(int64_t row_bytes, int64_t chunk_bytes);

}  // namespace quaver
