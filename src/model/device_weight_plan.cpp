#include "model/device_weight_plan.h"

#include <algorithm>
#include <utility>

#include "core/bf16.h"
#include "core/check.h"
#include "core/e4m3.h"
#include "gemm/packed_fp8/layout.h"
#include "gemm/weight_view.h"

namespace quaver {
namespace {

using packed_fp8::ceil_divide;

constexpr int64_t kAlignment = 256;  // bytes: what cudaMalloc gives and cuBLASLt likes best
constexpr int64_t kBlock = packed_fp8::kScaleBlock;

int64_t aligned(int64_t value, int64_t alignment) {
  return ceil_divide(value, alignment) * alignment;
}

bool is_fp8(const LinearWeight& linear) {
  return linear.weight.dtype == DType::kE4M3;
}

/// Scale of the block that holds element (row, column).
float scale_at(const LinearWeight& linear, int64_t row, int64_t column) {
  const int64_t columns = ceil_divide(linear.in_features(), linear.block_k);
  return linear.scale.at(static_cast<size_t>(row / linear.block_n * columns + column / linear.block_k));
}

struct Stored {
  WeightFormat format = WeightFormat::kBf16;
  InputKind input = InputKind::kBf16;
};

/// The recipe of the activations decides: it is what the product in front of the weight's scales has to do.
Stored stored_as(const LinearWeight& linear) {
  switch (linear.activation) {
    case ActivationQuant::kPerToken: return {.format = WeightFormat::kOuter, .input = InputKind::kPerToken};
    case ActivationQuant::kPerTensor: return {.format = WeightFormat::kOuter, .input = InputKind::kStatic};
    case ActivationQuant::kPerGroup128: return {.format = WeightFormat::kBlock, .input = InputKind::kPerBlock};
    default: return {};
  }
}

void check_scale_layout(const LinearWeight& linear, WeightFormat format) {
  const bool whole_rows = linear.block_k >= linear.in_features();
  if (format == WeightFormat::kOuter) {
    check_as(ErrorKind::kUnsupported, whole_rows, linear.name,
             ": expected a scale per row or one in all with activation scales per token or tensor, got 128x128 blocks");
  } else if (format == WeightFormat::kBlock) {
    const bool blocks = (whole_rows || linear.block_k % kBlock == 0) &&
                        (linear.block_n % kBlock == 0 || linear.block_n >= linear.out_features());
    check_as(ErrorKind::kUnsupported, blocks, linear.name,
             ": expected scales of 128x128 blocks or one in all with activation scales per 128 columns");
  }
}

class Planner {
 public:
  Planner(const ModelConfig& config, packed_fp8::SumOrder order) : config_(config) { plan_.order = order; }

  DeviceWeightPlan plan(const ModelWeights& weights) {
    LinearWeight embedding;
    embedding.weight = weights.embedding;
    embedding.name = config_.tie_embeddings ? weights.lm_head.name : "embed_tokens.weight";
    plan_.embedding = weight("embedding", {&embedding});
    if (!config_.tie_embeddings) plan_.lm_head = weight("lm_head", {&weights.lm_head});
    plan_.final_norm = floats(weights.final_norm);
    for (size_t index = 0; index < weights.layers.size(); ++index) {
      plan_.layers.push_back(layer(weights.layers[index], concat("layers.", index, ".")));
    }
    plan_.floats_offset = plan_.bytes;
    plan_.bytes += std::ssize(plan_.floats) * static_cast<int64_t>(sizeof(float));
    note();
    return std::move(plan_);
  }

 private:
  PlannedLayer layer(const LayerWeights& layer, const std::string& name) {
    PlannedLayer planned;
    const bool has_v = layer.v.weight.rank > 0;
    planned.qkv =
        weight(name + "qkv", has_v ? std::vector{&layer.q, &layer.k, &layer.v} : std::vector{&layer.q, &layer.k});
    planned.o = weight(name + "o", {&layer.o});
    planned.gate_up = weight(name + "gate_up", {&layer.gate, &layer.up}, true);
    planned.down = weight(name + "down", {&layer.down});
    planned.input_norm = floats(layer.input_norm);
    planned.post_attention_norm = floats(layer.post_attention_norm);
    planned.pre_feedforward_norm = floats(layer.pre_feedforward_norm);
    planned.post_feedforward_norm = floats(layer.post_feedforward_norm);
    planned.q_norm = floats(layer.q_norm);
    planned.k_norm = floats(layer.k_norm);
    planned.k_scale = floats(layer.k_scale);
    planned.v_scale = floats(layer.v_scale);
    planned.layer_scalar = layer.layer_scalar;
    return planned;
  }

  PlannedWeight weight(std::string name, const std::vector<const LinearWeight*>& parts, bool gate_and_up = false) {
    const LinearWeight& first = *parts.front();
    const Stored stored = stored_as(first);
    PlannedWeight planned{.name = std::move(name),
                          .format = stored.format,
                          .k = first.in_features(),
                          .input = stored.input,
                          .static_scale = first.input_scale};
    for (const LinearWeight* part : parts) {
      check_as(ErrorKind::kUnsupported, is_fp8(*part) == is_fp8(first) && part->activation == first.activation,
               part->name, " ", dtype_name(part->weight.dtype), ": expected dtype and activation scales of ",
               first.name, ", one product computes both");
      check_scale_layout(*part, planned.format);
      check_as(ErrorKind::kUnsupported, planned.format != WeightFormat::kBlock || planned.n % kBlock == 0, part->name,
               " behind ", planned.n, " rows of the same product: expected a multiple of 128 with 128x128 blocks");
      if (part->input_scale != planned.static_scale) different_input_scales_ = true;
      planned.static_scale = std::max(planned.static_scale, part->input_scale);
      planned.parts.push_back({.source = *part, .first_row = planned.n, .ordinal = ++ordinal_});
      planned.n += part->out_features();
      if (is_fp8(*part) && planned.format == WeightFormat::kBf16) ++num_widened_;
      if (part->weight.dtype == DType::kF32) ++num_rounded_;
    }
    if (gate_and_up && plan_.order == packed_fp8::SumOrder::kAny) take_turns(planned);
    planned.scales = floats(scales(planned));
    planned.bytes = planned.format == WeightFormat::kBf16 ? planned.n * planned.k * dtype_bytes(DType::kBF16)
                                                          : packed_fp8::packed_bytes(planned.n, planned.k);
    planned.offset = plan_.bytes;
    plan_.bytes += aligned(planned.bytes, kAlignment);
    return planned;
  }

  /// Gate and up, where the kernel for both at once takes them: scales by row, whole groups.
  static void take_turns(PlannedWeight& planned) {
    constexpr int64_t kGroup = packed_fp8::kGroupRows;
    const int64_t inner = planned.parts[0].source.out_features();
    planned.gated = planned.format == WeightFormat::kOuter && inner % kGroup == 0 && planned.n == 2 * inner;
    if (!planned.gated) return;
    for (WeightPart& part : planned.parts) {
      part.first_row = part.first_row == 0 ? 0 : kGroup;
      part.group_stride = 2;
    }
  }

  static std::vector<float> scales(const PlannedWeight& planned) {
    std::vector<float> scales;
    if (planned.format == WeightFormat::kBf16) return scales;
    if (planned.format == WeightFormat::kOuter) {
      scales.resize(static_cast<size_t>(planned.n));
      for (const WeightPart& part : planned.parts) {
        for (int64_t row = 0; row < part.source.out_features(); ++row) {
          scales[static_cast<size_t>(part.packed_row(row))] = scale_at(part.source, row, 0);
        }
      }
      return scales;
    }
    for (const WeightPart& part : planned.parts) {
      for (int64_t row = 0; row < part.source.out_features(); row += kBlock) {
        for (int64_t column = 0; column < planned.k; column += kBlock) {
          scales.push_back(scale_at(part.source, row, column));
        }
      }
    }
    return scales;
  }

  FloatSpan floats(const std::vector<float>& values) {
    plan_.floats.resize(static_cast<size_t>(aligned(std::ssize(plan_.floats), kAlignment / int64_t{sizeof(float)})));
    const FloatSpan span{.begin = std::ssize(plan_.floats), .size = std::ssize(values)};
    plan_.floats.insert(plan_.floats.end(), values.begin(), values.end());
    return span;
  }

  void note() {
    if (num_widened_ > 0) {
      plan_.notes.push_back(concat(num_widened_, " FP8 matrices without activation scales are BF16 on the GPU"));
    }
    if (num_rounded_ > 0) plan_.notes.push_back(concat(num_rounded_, " F32 matrices are rounded to BF16 on the GPU"));
    if (different_input_scales_) {
      plan_.notes.emplace_back("static input scales of q, k, v or gate, up differ: their product takes the largest");
    }
  }

  const ModelConfig& config_;
  DeviceWeightPlan plan_;
  int64_t ordinal_ = 0;
  int num_widened_ = 0;
  int num_rounded_ = 0;
  bool different_input_scales_ = false;
};

}  // namespace

DeviceWeightPlan plan_device_weights(const ModelWeights& weights, const ModelConfig& config,
                                     packed_fp8::SumOrder order) {
  return Planner(config, order).plan(weights);
}

void widen_to_bf16(const LinearWeight& source, int64_t first_row, int64_t num_rows, Bf16* out) {
  with_weight_view(source, [&](const auto& view) {
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < num_rows; ++row) {
      const auto* from = view.row(first_row + row);
      Bf16* to = out + row * view.k;
      for (int64_t column = 0; column < view.k; ++column) {
        to[column] = to_bf16(to_float(from[column]) * view.scale(first_row + row, column));
      }
    }
  });
}

int64_t rows_per_chunk(int64_t row_bytes, int64_t chunk_bytes) {
  const int64_t rows = std::max<int64_t>(1, chunk_bytes / row_bytes);
  constexpr int64_t kGroup = packed_fp8::kGroupRows;
  return rows < kGroup ? rows : rows / kGroup * kGroup;
}

}  // namespace quaver
