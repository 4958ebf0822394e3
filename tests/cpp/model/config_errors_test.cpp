// Absurd and hostile configs: one clear line that names field, value and expectation; never a crash.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "quaver/model.h"
#include "testing/expect_error.h"
#include "testing/temp_dir.h"
#include "testing/tiny_gemma.h"

namespace quaver {
namespace {

using nlohmann::json;
using testing::expect_error;

struct BadField {
  const char* field;
  const char* value;  ///< JSON; empty: the field is missing
  const char* expected;
};

void expect_refused(json config, const BadField& bad, ErrorKind kind = ErrorKind::kInvalidArgument) {
  if (*bad.value == '\0') {
    config.erase(bad.field);
  } else {
    config[bad.field] = json::parse(bad.value);
  }
  SCOPED_TRACE(std::string(bad.field) + " = " + bad.value);
  expect_error([&] { (void)parse_model_config(config.dump()); }, kind, {bad.field, bad.expected});
}

TEST(ConfigErrors, Values) {
  const BadField cases[] = {
      {"hidden_size", "0", "0: expected an integer from 1 to 131072"},
      {"hidden_size", "-640", "-640: expected an integer from 1"},
      {"hidden_size", "640.5", "640.5: expected an integer"},
      {"hidden_size", "\"640\"", "\"640\": expected an integer"},
      {"hidden_size", "18446744073709551615", "expected an integer from 1 to 131072"},
      {"hidden_size", "", "missing: expected an integer from 1"},
      {"intermediate_size", "1e30", "expected an integer from 1"},
      {"intermediate_size", "", "missing"},
      {"num_hidden_layers", "1025", "1025: expected an integer from 1 to 1024"},
      {"num_hidden_layers", "2147483648", "expected an integer from 1 to 1024"},
      {"num_hidden_layers", "", "missing"},
      {"num_attention_heads", "0", "expected an integer from 1"},
      {"num_key_value_heads", "3", "3 of layer 0: expected a divisor of num_attention_heads = 4"},
      {"num_key_value_heads", "8", "8 of layer 0: expected a divisor"},
      {"num_key_value_heads", "0", "expected an integer from 1"},
      {"head_dim", "33", "33 of layer 0: expected an even number"},
      {"head_dim", "0", "expected an integer from 2 to 1024"},
      {"head_dim", "1048576", "expected an integer from 2 to 1024"},
      {"vocab_size", "4294967296", "expected an integer from 1 to 16777216"},
      {"max_position_embeddings", "-1", "expected an integer from 1"},
      {"sliding_window", "0", "0: expected an integer from 1"},
      {"sliding_window", "-6", "-6: expected an integer from 1"},
      {"rms_norm_eps", "0", "expected a number from 1e-12 to 1"},
      {"rms_norm_eps", "\"NaN\"", "expected a number"},
      {"query_pre_attn_scalar", "0", "expected a number from"},
      {"query_pre_attn_scalar", "-256", "expected a number from"},
      {"final_logit_softcapping", "-30", "expected a number from 0"},
      {"attn_logit_softcapping", "true", "expected a number from 0"},
      {"tie_word_embeddings", "1", "1: expected true or false"},
      {"eos_token_id", "97", "97: expected an integer from 0 to 96"},
      {"eos_token_id", "[1, -5]", "-5: expected an integer from 0"},
      {"eos_token_id", "{}", "expected an integer from 0"},
      {"layer_types", "[\"full_attention\"]", "with 1 entries: expected a list of num_hidden_layers = 3"},
      {"layer_types", "7", "7: expected a list"},
      {"layer_types", R"(["full_attention", "chunked_attention", "full_attention"])",
       "\"chunked_attention\": expected sliding_attention or full_attention"},
      {"rope_theta", "0", "expected a number from 1"},
      {"rope_local_base_freq", "[]", "expected a number from 1"},
      {"rope_scaling", R"({"rope_type": "linear"})", "factor missing"},
      {"rope_scaling", R"({"rope_type": "linear", "factor": 0})", "factor 0: expected a number"},
      {"rope_scaling", "8", "8: expected a JSON object"},
      {"rope_parameters", "[]", "[]: expected a JSON object"},
      {"sliding_window_pattern", "0", "expected an integer from 1"},
  };
  for (const BadField& bad : cases) {
    json config = testing::tiny_gemma3_config();
    if (std::string_view(bad.field) == "sliding_window_pattern") config.erase("layer_types");
    expect_refused(config, bad);
  }
}

TEST(ConfigErrors, Gemma4Values) {
  const BadField cases[] = {
      {"global_head_dim", "63", "63 of layer 2: expected an even number"},
      {"num_global_key_value_heads", "3", "3 of layer 2: expected a divisor"},
      {"attention_k_eq_v", "\"yes\"", "expected true or false"},
      {"per_layer_config", R"({"3": {"head_dim": 64}})", "\"3\": expected a layer index below 3"},
      {"per_layer_config", R"({"-1": {"head_dim": 64}})", "expected a layer index"},
      {"per_layer_config", R"({"2": 7})", "7: expected a JSON object"},
      {"per_layer_config", R"({"2": {"head_dim": 0}})", "per_layer_config.2.head_dim 0: expected"},
      {"rope_parameters", R"({"full_attention": {"rope_type": "default", "rope_theta": 1e6}})",
       "expected an entry sliding_attention"},
      {"rope_parameters",
       R"({"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 1.5, "rope_theta": 1e6},
           "sliding_attention": {"rope_theta": 1e4}})",
       "partial_rotary_factor 1.5: expected a number from 0 to 1"},
      {"rope_parameters", R"({"full_attention": {"rope_type": "default"}, "sliding_attention": {"rope_theta": 1e4}})",
       "full_attention.rope_theta missing"},
  };
  for (const BadField& bad : cases) expect_refused(testing::tiny_gemma4_config(), bad);
}

TEST(ConfigErrors, UnsupportedFeaturesByName) {
  const BadField gemma3[] = {
      {"architectures", "[\"LlamaForCausalLM\"]", "LlamaForCausalLM"},
      {"architectures", "[\"Gemma3TextModel\"]", "expected one of Gemma3ForCausalLM"},
      {"architectures", "[]", "expected one of Gemma3ForCausalLM"},
      {"model_type", "\"gemma3n_text\"", "expected gemma3, gemma3_text"},
      {"use_bidirectional_attention", "true", "bidirectional"},
      {"attention_bias", "true", "biases"},
      {"hidden_activation", "\"silu\"", "expected gelu_pytorch_tanh"},
      {"torch_dtype", "\"float16\"", "expected bfloat16 or float32"},
      {"rope_scaling", R"({"rope_type": "yarn", "factor": 4})", "\"yarn\": expected default, linear"},
  };
  for (const BadField& bad : gemma3) {
    expect_refused(testing::tiny_gemma3_config(), bad, ErrorKind::kUnsupported);
  }
  const BadField gemma4[] = {
      {"enable_moe_block", "true", "MoE"},
      {"hidden_size_per_layer_input", "256", "PLE"},
      {"hidden_size_per_layer_input", "", "256 (the default)"},
      {"num_kv_shared_layers", "20", "KV sharing"},
      {"use_bidirectional_attention", "\"all\"", "expected vision"},
      {"per_layer_config", R"({"2": {"skip": ["mlp"]}})", "\"skip\": expected head_dim"},
  };
  for (const BadField& bad : gemma4) {
    expect_refused(testing::tiny_gemma4_config(), bad, ErrorKind::kUnsupported);
  }
}

TEST(ConfigErrors, Texts) {
  const std::string bomb = std::string(100000, '[');
  const std::string objects = [] {
    std::string text;
    for (int i = 0; i < 50000; ++i) text += "{\"a\":";
    return text;
  }();
  const std::pair<std::string, const char*> cases[] = {
      {"", "expected valid JSON"},
      {"{", "expected valid JSON"},
      {"[]", "expected a JSON object"},
      {"null", "expected a JSON object"},
      {"\xff\xfe{}", "expected valid JSON"},
      {"{\"hidden_size\": NaN}", "byte 17: expected valid JSON"},
      {"{\"hidden_size\": 1e400}", "finite"},
      {"{\"a\": 1, \"a\": 2}", "\"a\" given twice"},
      {"{\"text_config\": 3}", "text_config 3: expected a JSON object"},
      {bomb, "nested at most 64 deep"},
      {objects, "nested at most 64 deep"},
      {std::string("{\"model_type\": \"") + std::string(100000, 'x') + "\"}", "..."},
      {"{\"model_type\": \"a\\nb\\u0000\"}", "a\\nb\\u0000"},
  };
  for (const auto& [text, expected] : cases) {
    SCOPED_TRACE(text.substr(0, 60));
    expect_error([&] { (void)parse_model_config(text); }, std::nullopt, {expected});
  }
  expect_error([] { (void)parse_model_config(testing::tiny_gemma3_config().dump(), "[1]"); }, std::nullopt,
               {"hf-overrides [1]: expected a JSON object"});
}

TEST(ConfigErrors, Files) {
  const testing::TempDir folder;
  expect_error([&] { (void)load_model_config(folder.path() / "absent"); }, ErrorKind::kNotFound, {"absent"});
  expect_error([&] { (void)load_model_config(folder.path()); }, ErrorKind::kNotFound, {"config.json"});
  std::filesystem::create_directory(folder.path() / "config.json");
  expect_error([&] { (void)load_model_config(folder.path()); }, ErrorKind::kIo, {"config.json", "regular file"});
}

}  // namespace
}  // namespace quaver
