// Runners of the small checkpoints of tests/golden.
#pragma once

#include "engine/device_runner.h"
#include "testing/random.h"
#include "testing/step_driver.h"

namespace quaver::testing {

using Sequence = StepDriver::Sequence;

inline std::filesystem::path golden(const std::string& name) {
  return std::filesystem::path(QUAVER_SOURCE_DIR) / "tests" / "golden" / name;
}

inline constexpr EngineOptions kEngine{.max_model_len = 128, .max_num_seqs = 4, .max_num_batched_tokens = 48};

// Without graphs where nothing depends on them: recording takes its time under emulation.
inline RunnerOptions runner_options(KvDtype dtype = KvDtype::kE4M3, bool graphs = false) {
  return {.kv_dtype = dtype, .block_size = 16, .kv_cache_bytes = 2 << 20, .cuda_graphs = graphs};
}

inline std::unique_ptr<DeviceRunner> on_gpu(const std::filesystem::path& folder, const RunnerOptions& options,
                                            const EngineOptions& engine = kEngine) {
  return DeviceRunner::load(folder, options, engine, 0);
}

inline std::vector<int32_t> tokens_of(int64_t count, uint64_t seed) {
  Random random(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = static_cast<int32_t>(3 + random.below(190));
  return tokens;
}

}  // namespace quaver::testing
