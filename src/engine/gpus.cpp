// The GPU side of load_runner.h, in builds with CUDA.
#include "core/cuda.h"
#include "engine/device_runner.h"
#include "engine/load_runner.h"

namespace quaver {

bool built_with_cuda() noexcept {
  return true;
}

int num_gpus() noexcept {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  static_cast<void>(cudaGetLastError());  // no driver or no GPU: not an error of a later call
  return 0;
}

LoadedRunner load_gpu_runner(int gpu, const std::filesystem::path& directory, const RunnerOptions& options,
                             const EngineOptions& engine) {
  std::unique_ptr<DeviceRunner> runner = DeviceRunner::load(directory, options, engine, gpu);
  ModelConfig config = runner->model().config();
  std::vector<std::string> notes = runner->model().weights().notes;
  return {.runner = std::move(runner), .config = std::move(config), .notes = std::move(notes)};
}

}  // namespace quaver
