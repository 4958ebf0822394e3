// The GPU side of load_runner.h and step_profile.h, in builds without CUDA.
#include "core/check.h"
#include "engine/load_runner.h"
#include "engine/step_profile.h"

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

std::vector<StepProfile> profile_steps(int gpu, const std::filesystem::path& /*directory*/,
                                       const RunnerOptions& /*options*/, const ProfileLoad& /*load*/) {
  fail(ErrorKind::kUnsupported, "profile on cuda:", gpu, ": expected a build with CUDA");
}

}  // namespace quaver
