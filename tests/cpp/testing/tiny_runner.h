// A CpuRunner over a random tiny checkpoint, with the same weights as tiny_generator().
#pragma once

#include <memory>
#include <nlohmann/json.hpp>

#include "engine/cpu_runner.h"
#include "testing/temp_dir.h"
#include "testing/tiny_gemma.h"

namespace quaver::testing {

inline std::unique_ptr<CpuRunner> tiny_runner(const nlohmann::json& config, RunnerOptions options,
                                              const EngineOptions& engine = {}) {
  const TempDir folder;
  folder.write("config.json", config.dump());
  random_checkpoint(parse_model_config(config.dump()), 11).write(folder.path() / "model.safetensors");
  options.block_size = 16;
  if (options.kv_cache_bytes == 0) options.kv_cache_bytes = 4 << 20;
  return CpuRunner::load(folder.path(), options, engine);
}

}  // namespace quaver::testing
