// What a step must move and compute, part by part: the yardstick of --profile. Pure functions of shapes.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "quaver/kv_cache.h"
#include "quaver/model.h"

namespace quaver {

/// The parts of a step on the GPU, in the order of their first launch.
enum class StepPart : uint8_t {
  kPrepare,  ///< token feedback, rope tables, attention schedules
  kEmbedding,
  kNorms,  ///< norms, residual additions and the quantisation that goes with them
  kQkvGemm,
  kQkvAppend,  ///< q, k and v norms, rotation, K and V into their pages
  kSlidingAttention,
  kFullAttention,
  kQuantize,  ///< of attention outputs
  kOutGemm,
  kGateUpGemm,  ///< with scales by row: the gate included
  kGeglu,       ///< the gate, where the product leaves it, and the quantisation behind it
  kDownGemm,
  kLmHead,  ///< the final norm included
  kSampling,
};
inline constexpr int kNumStepParts = 14;

/// "qkv_gemm", …: the keys of the profile's JSON.
[[nodiscard]] std::string_view part_name(StepPart part) noexcept;

/// A linear layer as it lies in memory.
struct LinearFacts {
  int64_t out_features = 0;
  int64_t in_features = 0;
  bool fp8 = false;
  bool gated = false;  ///< gate_up: the product applies the gate, kGeglu only quantises
};
struct LayerFacts {
  LinearFacts qkv, out, gate_up, down;
};

/// What one sequence has in a step.
struct SequenceLoad {
  int64_t query_len = 0;
  int64_t kv_len = 0;  ///< the new tokens included
};
struct StepLoad {
  std::vector<SequenceLoad> sequences;
  int64_t num_logit_rows = 0;
  bool last_tokens_only = false;  ///< as DeviceBatch: the last layer goes on with one token a sequence, or none
  [[nodiscard]] int64_t num_tokens() const;
};

/// Least bytes to and from HBM (every operand once), operations by the tensor cores they run on.
struct PartCost {
  double bytes = 0;
  double fp8_flops = 0;
  double bf16_flops = 0;
};

/// Measured on an H200: reads of HBM, sustained WGMMA on random data (docs/serving.md, Profile).
struct Ceilings {
  double bytes_per_s = 4.54e12;
  double fp8_flops_per_s = 1.68e15;
  double bf16_flops_per_s = 0.85e15;
};

/// Seconds below which no implementation gets: the slower of memory and arithmetic.
[[nodiscard]] double least_seconds(const PartCost& cost, const Ceilings& ceilings = {});

/// By part. `layers`: one entry a layer of the model. FLOPs of attention are those of visible (query, key) pairs.
[[nodiscard]] std::array<PartCost, kNumStepParts> step_costs(const ModelConfig& config,
                                                             const std::vector<LayerFacts>& layers,
                                                             const CachePlan& plan, const StepLoad& load);

/// The linear layers of a model whose projections are all FP8, or all BF16.
[[nodiscard]] std::vector<LayerFacts> layer_facts(const ModelConfig& config, bool fp8);

}  // namespace quaver
