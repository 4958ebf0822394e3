// The GPU side of load_runner.h, in builds without CUDA.
#include "core/check.h"
#include "engine/load_runner.h"

namespace quaver {

bool built_with_cuda() noexcept {
  return false;
}

int num_gpus() noexcept {
  return 0;
}

LoadedRunner load_gpu_runner(int gpu, const std::filesystem::path& /*directory*/, const RunnerOptions& /*options*/,
                             const EngineOptions& /*engine*/) {
  fail(ErrorKind::kUnsupported, "device cuda:", gpu, ": expected cpu, this build has no CUDA");
}

}  // namespace quaver
