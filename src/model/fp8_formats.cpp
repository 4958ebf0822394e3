#include "model/fp8_formats.h"

#include <cmath>
#include <cstring>

#include "core/bf16.h"
#include "core/check.h"
#include "model/json.h"

namespace quaver {
namespace {

constexpr int64_t kBlock = 128;

int64_t num_blocks(int64_t size) {
  return (size + kBlock - 1) / kBlock;
}

void expect_block_128(const Fields& fields, std::string_view name) {
  const Json* block = fields.find(name);
  check_as(ErrorKind::kUnsupported, block == nullptr || *block == Json::array({kBlock, kBlock}), fields.path(name), " ",
           block == nullptr ? "" : printable(*block), ": expected [128, 128]");
}

[[noreturn]] void refuse(const Fields& fields, std::string_view name, std::string_view expected) {
  const Json* value = fields.find(name);
  fail(ErrorKind::kUnsupported, fields.path(name), " ", value == nullptr ? "missing" : printable(*value), ": expected ",
       expected);
}

void expect_fp8(const Fields& arguments) {
  if (arguments.integer("num_bits", {.low = 1, .high = 64}, 0) != 8) refuse(arguments, "num_bits", "8");
  if (arguments.string("type", "") != "float") refuse(arguments, "type", "float");
  if (!arguments.boolean("symmetric", true)) refuse(arguments, "symmetric", "true");
}

WeightScales group_weights(const Fields& weights) {
  expect_fp8(weights);
  const std::string strategy = weights.string("strategy", "");
  if (strategy == "tensor") return WeightScales::kPerTensor;
  if (strategy == "channel") return WeightScales::kPerChannel;
  if (strategy != "block") refuse(weights, "strategy", "tensor, channel or block");
  expect_block_128(weights, "block_structure");
  return WeightScales::kBlock128;
}

ActivationQuant group_activations(const Fields& activations) {
  expect_fp8(activations);
  const std::string strategy = activations.string("strategy", "");
  const bool dynamic = activations.boolean("dynamic", false);
  if (strategy == "tensor" && !dynamic) return ActivationQuant::kPerTensor;
  if (strategy == "token" && dynamic) return ActivationQuant::kPerToken;
  if (strategy != "group" || !dynamic) {
    refuse(activations, "strategy", "dynamic token, dynamic group of 128, or static tensor");
  }
  if (activations.integer("group_size", {.low = 1, .high = 1 << 20}, 0) != kBlock) {
    refuse(activations, "group_size", "128");
  }
  return ActivationQuant::kPerGroup128;
}

/// compressed-tensors: {"config_groups": {"group_0": {"weights": {…}, "input_activations": {…} | null}}}.
QuantRecipe compressed_tensors(const Fields& fields) {
  const auto groups = fields.object("config_groups");
  if (!groups) refuse(fields, "config_groups", "at least one group");
  std::optional<QuantRecipe> recipe;
  for (const auto& [name, group] : groups->json().items()) {
    const Fields one(group, groups->path(name));
    const auto weights = one.object("weights");
    if (!weights) refuse(one, "weights", "num_bits, type and strategy");
    const auto activations = one.object("input_activations");
    const QuantRecipe next{.weights = group_weights(*weights),
                           .activation = activations ? group_activations(*activations) : ActivationQuant::kNone};
    check_as(ErrorKind::kUnsupported, !recipe || recipe->activation == next.activation, one.path("input_activations"),
             ": expected the same activations in every group");
    recipe = next;
  }
  if (!recipe) refuse(fields, "config_groups", "at least one group");
  return *recipe;
}

QuantRecipe modelopt(const Fields& fields) {
  const std::string algorithm = fields.string("quant_algo", "");
  if (algorithm == "FP8") {
    return {.weights = WeightScales::kPerTensor, .activation = ActivationQuant::kPerTensor};
  }
  if (algorithm == "FP8_PER_CHANNEL_PER_TOKEN") {
    return {.weights = WeightScales::kPerChannel, .activation = ActivationQuant::kPerToken};
  }
  if (algorithm != "FP8_PB_WO") refuse(fields, "quant_algo", "FP8, FP8_PER_CHANNEL_PER_TOKEN or FP8_PB_WO");
  return {.weights = WeightScales::kBlock128, .activation = ActivationQuant::kNone};
}

/// quant_method "fp8": transformers' and DeepSeek's blocks, or per-tensor weights.
QuantRecipe plain_fp8(const Fields& fields) {
  const std::string scheme = fields.string("activation_scheme", "dynamic");
  if (scheme != "dynamic" && scheme != "static") refuse(fields, "activation_scheme", "dynamic or static");
  const bool is_static = scheme == "static";
  if (!fields.has("weight_block_size")) {
    return {.weights = WeightScales::kPerTensor,
            .activation = is_static ? ActivationQuant::kPerTensor : ActivationQuant::kPerToken};
  }
  expect_block_128(fields, "weight_block_size");
  if (is_static) refuse(fields, "activation_scheme", "dynamic with weight_block_size");
  return {.weights = WeightScales::kBlock128, .activation = ActivationQuant::kPerGroup128};
}

}  // namespace

std::optional<QuantRecipe> parse_quant_recipe(const std::string& quantization_json) {
  if (quantization_json.empty()) return std::nullopt;
  const Json root = parse_json(quantization_json, "quantization_config");
  const Fields fields(root, "quantization_config");
  if (const auto nested = fields.object("quantization")) return modelopt(*nested);  // hf_quant_config.json
  const std::string method = fields.string("quant_method", "");
  if (method == "compressed-tensors") return compressed_tensors(fields);
  if (method == "modelopt") return modelopt(fields);
  if (method == "fp8") return plain_fp8(fields);
  refuse(fields, "quant_method", "compressed-tensors, modelopt or fp8");
}

std::vector<float> read_floats(const StoredTensor& tensor, const std::string& name) {
  if (tensor.dtype == "F32") {
    std::vector<float> values(tensor.data.size() / sizeof(float));
    if (!values.empty()) std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
    return values;
  }
  check(tensor.dtype == "BF16", name, " ", to_string(tensor), ": expected dtype BF16 or F32");
  std::vector<float> values(tensor.data.size() / sizeof(Bf16));
  for (size_t i = 0; i < values.size(); ++i) {
    Bf16 stored;
    std::memcpy(&stored, tensor.data.data() + i * sizeof stored, sizeof stored);
    values[i] = to_float(stored);
  }
  return values;
}

std::vector<float> read_scales(const StoredTensor& tensor, const std::string& name) {
  std::vector<float> values = read_floats(tensor, name);
  for (const float value : values) {
    check(std::isfinite(value) && value > 0, name, " ", value, in_file(tensor), ": expected a positive, finite scale");
  }
  return values;
}

void set_weight_scales(LinearWeight& linear, const StoredTensor& scales, const std::string& name) {
  const int64_t n = linear.out_features();
  const int64_t k = linear.in_features();
  using Shape = std::vector<int64_t>;
  const Shape& shape = scales.shape;
  linear.scale = read_scales(scales, name);
  if (linear.scale.size() == 1 && shape.size() <= 2) {
    linear.block_n = n;
    linear.block_k = k;
  } else if (shape == Shape{n} || shape == Shape{n, 1}) {
    linear.block_n = 1;
    linear.block_k = k;
  } else if (shape == Shape{num_blocks(n), num_blocks(k)} || shape == Shape{num_blocks(n), 1, num_blocks(k), 1}) {
    linear.block_n = kBlock;
    linear.block_k = kBlock;
  } else {
    fail(ErrorKind::kInvalidArgument, name, " ", to_string(scales), ": expected [], [1], [", n, "], [", n, ", 1], [",
         num_blocks(n), ", ", num_blocks(k), "] or [", num_blocks(n), ", 1, ", num_blocks(k), ", 1]");
  }
}

void set_uniform_scales(LinearWeight& linear, WeightScales layout, float scale) {
  const int64_t n = linear.out_features();
  const int64_t k = linear.in_features();
  const bool block = layout == WeightScales::kBlock128;
  linear.block_n = block ? kBlock : layout == WeightScales::kPerChannel ? 1 : n;
  linear.block_k = block ? kBlock : k;
  const int64_t rows = (n + linear.block_n - 1) / linear.block_n;
  const int64_t columns = (k + linear.block_k - 1) / linear.block_k;
  linear.scale.assign(static_cast<size_t>(rows * columns), scale);
}

}  // namespace quaver
