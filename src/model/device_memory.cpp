#include "model/device_memory.h"

#include <vector>

#include "core/check.h"
#include "gemm/cublaslt_workspace.h"
#include "gemm/packed_fp8/workspace.h"
#include "model/device_weight_plan.h"
#include "model/dummy.h"

namespace quaver {
DeviceMemory device_memory(const ModelConfig& config, const CachePlan& plan, const DeviceMemoryShape& shape) {
  const DeviceWeightPlan weights = plan_device_weights(dummy_outline(config), config);
  std::vector<LinearInput> inputs;
  bool gated = true;
  for (const PlannedLayer& layer : weights.layers) {
    for (const PlannedWeight* weight : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) {
      inputs.push_back({.width = weight->k, .kind = weight->input});
    }
    gated = gated && layer.gate_up.gated;
  }
  const int64_t blocks = plan.blocks_for(shape.max_model_len);
  return {.weights = weights.bytes,
          .workspace = workspace_layout(config, inputs, gated, shape.step).bytes + kCublasLtWorkspaceBytes +
                       packed_fp8::kWorkspaceBytes,
          .block = plan.block_bytes(),
          .sequence = blocks * plan.block_bytes(),
          .chunk_pages = (plan.blocks_for(shape.max_model_len, shape.chunk_tokens) - blocks) * plan.block_bytes()};
}

std::string to_string(const DeviceMemory& memory) {
  return concat("weights ", gibibytes(memory.weights), ", workspace ", gibibytes(memory.workspace), ", cache ",
                gibibytes(memory.sequence), " a sequence and ", gibibytes(memory.chunk_pages), " for a chunk");
}

std::string gibibytes(int64_t bytes) {
  return concat(fixed_point(static_cast<double>(bytes) / (1 << 30), 2), " GiB");
}

}  // namespace quaver
