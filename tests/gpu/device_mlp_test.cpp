// Weights of an MLP whose formats differ, on the GPU against the CPU.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "engine/cpu_runner.h"
#include "engine/device_runner.h"
#include "testing/fp8_checkpoint.h"
#include "testing/step_driver.h"
#include "testing/temp_dir.h"

namespace quaver {
namespace {

using testing::StepDriver;

/// Projections of a tiny Gemma 3 in FP8 per channel, but `kept` as they were: recipes name modules that they ignore.
void write_model(const testing::TempDir& folder, const std::vector<std::string>& kept) {
  nlohmann::json json = testing::tiny_gemma3_config();
  json["quantization_config"] = testing::fp8_dynamic();
  folder.write("config.json", json.dump());
  testing::SafetensorsWriter file = testing::random_checkpoint(parse_model_config(json.dump()), 11);
  const auto tensors = file.tensors();
  testing::quantize_projections(file, WeightScales::kPerChannel, false);
  for (const auto& [name, tensor] : tensors) {
    if (std::ranges::none_of(kept, [&](const auto& part) { return name.find(part) != std::string::npos; })) continue;
    file.tensors().at(name) = tensor;
    file.tensors().erase(name + "_scale");
  }
  file.write(folder.path() / "model.safetensors");
}

std::vector<TokenLogprobs> prompt_logprobs(std::unique_ptr<Runner> runner) {
  std::vector<int32_t> prompt(37);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(3 + 29 * i % 90);
  StepDriver driver(std::move(runner));
  StepDriver::Sequence sequence;
  return driver.prompt_logprobs(sequence, prompt, prompt.size(), 5);
}

// Down in BF16 behind gate and up in FP8 reads what their product stores, gate applied, as it is; gate and up in BF16
// in front of down in FP8 have the gate in the quantisation. Bounds as for BF16 models, and codes that round the other
// way.
TEST(DeviceMlp, Bf16BesideFp8) {
  for (const auto& kept : {std::vector<std::string>{"down_proj"}, {"gate_proj", "up_proj"}}) {
    const testing::TempDir folder;
    write_model(folder, kept);
    const RunnerOptions options{.kv_dtype = KvDtype::kBF16, .block_size = 16, .kv_cache_bytes = 2 << 20};
    constexpr EngineOptions kEngine{.max_model_len = 128, .max_num_seqs = 4, .max_num_batched_tokens = 48};
    const auto expected = prompt_logprobs(CpuRunner::load(folder.path(), options, kEngine));
    const auto found = prompt_logprobs(DeviceRunner::load(folder.path(), options, kEngine, 0));
    ASSERT_EQ(found.size(), expected.size());
    double mean = 0;
    double most = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      const double difference = std::abs(double{found[i].logprob} - double{expected[i].logprob});
      mean += difference / static_cast<double>(found.size());
      most = std::max(most, difference);
    }
    EXPECT_LT(mean, 0.15) << kept[0];
    EXPECT_LT(most, 0.7) << kept[0];
    RecordProperty("mean_" + kept[0], std::to_string(mean));
    RecordProperty("most_" + kept[0], std::to_string(most));
  }
}

}  // namespace
}  // namespace quaver
