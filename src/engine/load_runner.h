// From the words of --device to a runner with a model in it. What a build without CUDA has of this is in no_gpus.cpp.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/runner.h"
#include "engine/runner_options.h"
#include "quaver/tensor.h"

namespace quaver {

struct LoadedRunner {
  std::unique_ptr<Runner> runner;
  ModelConfig config{};
  std::vector<std::string> notes{};  ///< lines for the user
};

/// "cpu", "cuda" (the first GPU), "cuda:N", or "auto": the first GPU where this build has CUDA and the machine a GPU,
/// else the CPU. Throws Error(kInvalidArgument) for other words and GPUs that are not there, Error(kUnsupported) for
/// cuda in a build without it.
[[nodiscard]] Device device_by_name(std::string_view name);

/// Loads the Hugging Face folder `directory` onto `device` and sizes its cache for `engine`. Throws what the runner's
/// load() throws.
[[nodiscard]] LoadedRunner load_runner(Device device, const std::filesystem::path& directory,
                                       const RunnerOptions& options, const EngineOptions& engine);

/// What this build knows of GPUs.
[[nodiscard]] bool built_with_cuda() noexcept;
/// GPUs that this process sees; 0 without CUDA.
[[nodiscard]] int num_gpus() noexcept;
[[nodiscard]] LoadedRunner load_gpu_runner(int gpu, const std::filesystem::path& directory,
                                           const RunnerOptions& options, const EngineOptions& engine);

}  // namespace quaver
