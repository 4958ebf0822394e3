// What loading costs the host: pages of the checkpoint leave the process as they are read.
#include <gtest/gtest.h>

#include <fstream>

#include "model/device_weights.h"
#include "testing/fp8_checkpoint.h"
#include "testing/temp_dir.h"

namespace quaver::testing {
namespace {

constexpr int64_t kMiB = 1 << 20;

/// "VmRSS" or "VmHWM" (its highest value so far) of this process.
int64_t memory_bytes(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name + ":")) return std::stoll(line.substr(name.size() + 1)) * 1024;
  }
  return 0;
}

/// Matrices of one repeated code: 12 layers of 30 MB.
void write_checkpoint(const ModelConfig& config, const std::filesystem::path& path) {
  nlohmann::json small = tiny_gemma3_config();
  SafetensorsWriter file = random_checkpoint(parse_model_config(small.dump()), 3);
  file.tensors().clear();
  const int64_t hidden = config.hidden_size;
  const int64_t inner = config.intermediate_size;
  const int64_t q_rows = int64_t{config.num_q_heads} * config.layers[0].head_dim;
  const int64_t kv_rows = int64_t{config.layers[0].num_kv_heads} * config.layers[0].head_dim;
  const auto matrix = [&](const std::string& module, int64_t n, int64_t k) {
    file.add_e4m3(module + ".weight", {n, k}, std::vector<uint8_t>(static_cast<size_t>(n * k), 0x38));
    file.add_f32(module + ".weight_scale", {n, 1}, std::vector<float>(static_cast<size_t>(n), 0.01F));
  };
  const auto norm = [&](const std::string& name, int64_t size) {
    file.add_f32(name + ".weight", {size}, std::vector<float>(static_cast<size_t>(size), 0.0F));
  };
  file.add_bf16("model.embed_tokens.weight", {config.vocab_size, hidden},
                std::vector<float>(static_cast<size_t>(config.vocab_size * hidden), 0.5F));
  norm("model.norm", hidden);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const std::string base = "model.layers." + std::to_string(layer) + ".";
    for (const char* name :
         {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"}) {
      norm(base + name, hidden);
    }
    norm(base + "self_attn.q_norm", config.layers[0].head_dim);
    norm(base + "self_attn.k_norm", config.layers[0].head_dim);
    matrix(base + "self_attn.q_proj", q_rows, hidden);
    matrix(base + "self_attn.k_proj", kv_rows, hidden);
    matrix(base + "self_attn.v_proj", kv_rows, hidden);
    matrix(base + "self_attn.o_proj", hidden, q_rows);
    matrix(base + "mlp.gate_proj", inner, hidden);
    matrix(base + "mlp.up_proj", inner, hidden);
    matrix(base + "mlp.down_proj", hidden, inner);
  }
  file.write(path);
}

TEST(DeviceWeightsHost, NoSecondCopyOfTheModel) {
  const ModelConfig config = fp8_model(
      true, fp8_dynamic(),
      {{"num_hidden_layers", 12}, {"layer_types", nullptr}, {"hidden_size", 1024}, {"intermediate_size", 9216}});
  const TempDir folder;
  const auto path = folder.path() / "model.safetensors";
  write_checkpoint(config, path);
  const auto file_bytes = static_cast<int64_t>(std::filesystem::file_size(path));
  ASSERT_GT(file_bytes, 300 * kMiB);
  (void)dummy_device_weights(fp8_model(true, nullptr), 1, nullptr);  // starts CUDA and cuBLASLt
  std::ofstream("/proc/self/clear_refs") << "5";                     // VmHWM from now on
  const int64_t before = memory_bytes("VmRSS");
  const DeviceWeights weights = load_device_weights(folder.path(), config, KvScalePolicy::kAuto, nullptr);
  // Pinned buffers of 48 MiB, one fused weight of 18 MiB, scales, page tables, and what the driver takes (50 MiB).
  EXPECT_LT(memory_bytes("VmHWM") - before, 150 * kMiB);
  EXPECT_LT(memory_bytes("VmRSS") - before, 40 * kMiB);
  EXPECT_GT(weights.bytes, 300 * kMiB);
}

}  // namespace
}  // namespace quaver::testing
