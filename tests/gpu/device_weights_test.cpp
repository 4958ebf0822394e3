// Weights in GPU memory: every byte against the plan applied on the CPU, dummy ones against those of the CPU, products
// against the CPU's.
#include "model/device_weights.h"

#include <gtest/gtest.h>

#include "device_input.h"
#include "model/device_weight_plan.h"
#include "model/matrices.h"
#include "testing/expect_error.h"
#include "testing/fp8_checkpoint.h"
#include "testing/metric.h"
#include "testing/temp_dir.h"
#include "testing/weight_image.h"

namespace quaver::testing {
namespace {

using nlohmann::json;

constexpr Device kGpu{.kind = Device::Kind::kCuda, .index = 0};
constexpr int64_t kSmallSlot = 4096;  // so that every matrix goes in many pieces

struct Format {
  const char* name;
  json recipe;
  WeightScales layout;
  bool input_scales = false;
};

std::vector<Format> formats() {
  return {{"channel", fp8_dynamic(), WeightScales::kPerChannel},
          {"block", fp8_block(), WeightScales::kBlock128},
          {"static", modelopt("FP8"), WeightScales::kPerTensor, true},
          {"weight only", modelopt("FP8_PB_WO"), WeightScales::kBlock128},
          {"none", nullptr, WeightScales::kPerTensor}};
}

SafetensorsWriter checkpoint(const ModelConfig& config, const Format& format) {
  return format.recipe.is_null() ? random_checkpoint(config, 3)
                                 : fp8_checkpoint(config, format.layout, format.input_scales);
}

/// The first differing byte, or -1.
int64_t first_difference(const DeviceWeights& weights, const std::vector<uint8_t>& image) {
  const std::vector<uint8_t> memory = to_host(weights.memory);
  if (memory.size() != image.size()) return 0;
  const auto different = std::ranges::mismatch(memory, image).in1;
  return different == memory.end() ? -1 : different - memory.begin();
}

TEST(DeviceWeights, EveryByteOfACheckpoint) {
  for (const Format& format : formats()) {
    for (const bool gemma3 : {true, false}) {
      SCOPED_TRACE(concat(format.name, gemma3 ? " Gemma 3" : " Gemma 4"));
      const ModelConfig config = fp8_model(gemma3, format.recipe, {{"tie_word_embeddings", gemma3}});
      const TempDir folder;
      checkpoint(config, format).write(folder.path() / "model.safetensors");
      const ModelWeights host = load_weights(folder.path(), config);
      const DeviceWeights weights = load_device_weights(folder.path(), config, KvScalePolicy::kAuto, nullptr,
                                                        packed_fp8::SumOrder::kAny, kSmallSlot);
      EXPECT_EQ(first_difference(weights, weight_image(plan_device_weights(host, config))), -1);
      EXPECT_EQ(weights.bytes, static_cast<int64_t>(weights.memory.bytes()));
      EXPECT_EQ(weights.step_bytes, host.bytes);
      EXPECT_EQ(weights.lm_head.out_features(), 97);
      EXPECT_EQ(weights.lm_head.matrix().data == weights.embedding, gemma3);
    }
  }
}

TEST(DeviceWeights, DummyIsTheCpusBitForBit) {
  for (const Format& format : formats()) {
    for (const bool gemma3 : {true, false}) {
      SCOPED_TRACE(concat(format.name, gemma3 ? " Gemma 3" : " Gemma 4"));
      const ModelConfig config = fp8_model(gemma3, format.recipe, {{"tie_word_embeddings", gemma3}});
      const ModelWeights host = dummy_weights(config, 17);
      const std::vector<uint8_t> image = weight_image(plan_device_weights(host, config));
      EXPECT_EQ(first_difference(dummy_device_weights(config, 17, nullptr), image), -1);
    }
  }
  const ModelConfig config = fp8_model(true, fp8_dynamic());
  const std::vector<uint8_t> image = weight_image(plan_device_weights(dummy_weights(config, 17), config));
  EXPECT_NE(first_difference(dummy_device_weights(config, 18, nullptr), image), -1);
}

/// The outputs of `parts` one after the other, from the CPU.
std::vector<float> cpu_rows(const std::vector<const LinearWeight*>& parts, const std::vector<float>& x, int64_t m) {
  int64_t n = 0;
  for (const LinearWeight* part : parts) n += part->out_features();
  std::vector<float> out(static_cast<size_t>(m * n));
  int64_t first = 0;
  for (const LinearWeight* part : parts) {
    std::vector<float> y(static_cast<size_t>(m * part->out_features()));
    linear(*part, x.data(), m, y.data());
    for (int64_t row = 0; row < m; ++row) {
      std::copy_n(y.begin() + row * part->out_features(), part->out_features(), out.begin() + row * n + first);
    }
    first += part->out_features();
  }
  return out;
}

void expect_product(const DeviceLinear& device, const std::vector<const LinearWeight*>& parts, double bound) {
  constexpr int64_t kTokens = 13;
  Random random(4);
  std::vector<float> x(static_cast<size_t>(kTokens * device.in_features()));
  for (float& value : x) value = to_float(to_bf16(random.normal()));
  const DeviceInput input(device.input_kind(), x, kTokens, device.in_features(), device.static_scale());
  DeviceBuffer<float> out(kTokens * device.out_features());
  device.run(input.input(), kTokens, TensorView(out.data(), DType::kF32, {kTokens, device.out_features()}, kGpu),
             nullptr);
  check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  const std::vector<float> rows = cpu_rows(parts, x, kTokens);
  std::vector<double> expected(rows.begin(), rows.end());
  if (device.gated()) {  // gate and up in turn
    const int64_t n = device.out_features();
    for (int64_t i = 0; i < std::ssize(rows); ++i) {
      const int64_t row = i % n;
      const int64_t packed = row % (n / 2) / 8 * 16 + (row < n / 2 ? 0 : 8) + row % 8;
      expected[static_cast<size_t>(i - row + packed)] = rows[static_cast<size_t>(i)];
    }
  }
  const std::vector<float> actual = to_host(out);
  const Deviation difference =
      deviation(std::span<const float>(actual), std::span<const double>(expected), device.out_features());
  EXPECT_LT(difference.relative_l2, bound);
  EXPECT_LT(difference.first_nonfinite_mismatch, 0);
}

// Codes times scales are equal, so what differs is the order of sums and the tensor core's 13 bits.
TEST(DeviceWeights, ProductsAreTheCpus) {
  for (const Format& format : formats()) {
    SCOPED_TRACE(format.name);
    const ModelConfig config = fp8_model(false, format.recipe);
    const TempDir folder;
    SafetensorsWriter file = checkpoint(config, format);
    for (auto& [name, tensor] : file.tensors()) {  // the same for the parts of a fused product
      constexpr float kInputScale = 0.03F;
      if (name.ends_with(".input_scale")) std::memcpy(tensor.bytes.data(), &kInputScale, sizeof kInputScale);
    }
    file.write(folder.path() / "model.safetensors");
    const ModelWeights host = load_weights(folder.path(), config);
    const DeviceWeights weights = load_device_weights(folder.path(), config, KvScalePolicy::kAuto, nullptr);
    const LayerWeights& cpu = host.layers[0];
    const DeviceLayerWeights& gpu = weights.layers[0];
    const double bound = 5e-3;  // F32 and weight-only matrices are rounded to BF16
    expect_product(gpu.qkv, {&cpu.q, &cpu.k, &cpu.v}, bound);
    expect_product(gpu.o, {&cpu.o}, bound);
    expect_product(gpu.gate_up, {&cpu.gate, &cpu.up}, bound);
    expect_product(gpu.down, {&cpu.down}, bound);
    expect_product(weights.layers[2].qkv, {&host.layers[2].q, &host.layers[2].k}, bound);  // V is K
    expect_product(weights.lm_head, {&host.lm_head}, bound);
  }
}

TEST(DeviceWeights, FaultsNameTensorAndFile) {
  const ModelConfig config = fp8_model(true, fp8_dynamic());
  const TempDir folder;
  SafetensorsWriter file = fp8_checkpoint(config, WeightScales::kPerChannel);
  const std::string k = "model.layers.1.self_attn.k_proj";
  file.add_bf16(k + ".weight", {128, 160}, std::vector<float>(128 * 160, 0.5F));
  file.write(folder.path() / "model.safetensors");
  const auto load = [&] { (void)load_device_weights(folder.path(), config, KvScalePolicy::kAuto, nullptr); };
  expect_error(load, ErrorKind::kUnsupported, {k + ".weight", "model.safetensors", "q_proj"});
  file.add_bf16(k + ".weight", {127, 160}, std::vector<float>(127 * 160, 0.5F));
  file.write(folder.path() / "model.safetensors");
  expect_error(load, ErrorKind::kInvalidArgument, {k + ".weight", "model.safetensors", "[127, 160]", "[128, 160]"});
}

}  // namespace
}  // namespace quaver::testing
