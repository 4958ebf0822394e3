#include "engine/load_runner.h"

#include <charconv>

#include "core/check.h"
#include "engine/cpu_runner.h"

namespace quaver {
namespace {

constexpr std::string_view kCuda = "cuda";

/// N of "cuda:N", 0 of "cuda"; -1 for other words.
int gpu_index(std::string_view name) {
  if (name == kCuda) return 0;
  constexpr std::string_view kPrefix = "cuda:";
  if (!name.starts_with(kPrefix)) return -1;
  int index = -1;
  const char* const end = name.data() + name.size();
  const auto [last, error] = std::from_chars(name.data() + kPrefix.size(), end, index);
  return error == std::errc() && last == end ? index : -1;
}

}  // namespace

Device device_by_name(std::string_view name) {
  if (name == "cpu") return {};
  if (name == "auto") return num_gpus() > 0 ? Device{.kind = Device::Kind::kCuda, .index = 0} : Device{};
  const int index = gpu_index(name);
  check(index >= 0, "device ", name, ": expected auto, cpu, cuda or cuda:N");
  check_as(ErrorKind::kUnsupported, built_with_cuda(), "device ", name,
           ": expected cpu, this build has no CUDA (configure with -DQUAVER_CUDA=ON)");
  check(index < num_gpus(), "device ", name, ": expected one of the ", num_gpus(), " GPUs that this process sees");
  return {.kind = Device::Kind::kCuda, .index = index};
}

LoadedRunner load_runner(Device device, const std::filesystem::path& directory, const RunnerOptions& options,
                         const EngineOptions& engine) {
  if (device.kind == Device::Kind::kCuda) return load_gpu_runner(device.index, directory, options, engine);
  std::unique_ptr<CpuRunner> runner = CpuRunner::load(directory, options, engine);
  ModelConfig config = runner->model().config();
  std::vector<std::string> notes = runner->model().weights().notes;
  return {.runner = std::move(runner), .config = std::move(config), .notes = std::move(notes)};
}

}  // namespace quaver
