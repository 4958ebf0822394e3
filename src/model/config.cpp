// config.json to ModelConfig. Field names and defaults are those of transformers' configuration_gemma3.py and
// configuration_gemma4.py (5.17); Gemma 3's multimodal files leave most fields to these defaults.
#include <algorithm>
#include <array>
#include <cmath>
#include <system_error>

#include "core/bf16.h"
#include "core/check.h"
#include "model/json.h"
#include "model/layer_config.h"
#include "quaver/model.h"

namespace quaver {
namespace {

/// Both levels of a config: multimodal files nest the text model, text-only files are flat (both views are then equal).
struct Document {
  Fields top;
  Fields text;

  /// The text model's own field, else the outer one.
  [[nodiscard]] const Fields& owner(std::string_view name) const { return text.has(name) ? text : top; }
};

Document open_document(const Json& root) {
  Fields top(root, "");
  auto text = top.object("text_config");
  return {.top = top, .text = text.value_or(top)};
}

ModelFamily read_family(const Document& document) {
  if (const Json* names = document.top.find("architectures")) {
    constexpr std::array<std::string_view, 4> kKnown = {"Gemma3ForCausalLM", "Gemma3ForConditionalGeneration",
                                                        "Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"};
    const bool known = names->is_array() && names->size() == 1 && names->front().is_string() &&
                       std::find(kKnown.begin(), kKnown.end(), names->front().get<std::string>()) != kKnown.end();
    check_as(ErrorKind::kUnsupported, known, "architectures ", printable(*names),
             ": expected one of Gemma3ForCausalLM, Gemma3ForConditionalGeneration, Gemma4ForCausalLM, "
             "Gemma4ForConditionalGeneration");
    if (!document.text.has("model_type")) {
      return names->front().get<std::string>().starts_with("Gemma3") ? ModelFamily::kGemma3 : ModelFamily::kGemma4;
    }
  }
  const std::string type = document.text.string("model_type", "");
  if (type == "gemma3_text" || type == "gemma3") return ModelFamily::kGemma3;
  if (type == "gemma4_text" || type == "gemma4") return ModelFamily::kGemma4;
  fail(ErrorKind::kUnsupported, document.text.path("model_type"), " ", printable(type),
       ": expected gemma3, gemma3_text, gemma4 or gemma4_text");
}

void expect_string(const Fields& fields, std::string_view name, std::string_view expected) {
  const std::string value = fields.string(name, expected);
  check_as(ErrorKind::kUnsupported, value == expected, fields.path(name), " ", printable(value), ": expected ",
           expected);
}

void expect_false(const Fields& fields, std::string_view name, std::string_view feature) {
  check_as(ErrorKind::kUnsupported, !fields.boolean(name, false), fields.path(name), " true: ", feature,
           " is not supported, expected false");
}

/// Features of the two families that would change the forward pass.
void refuse_unsupported(const Fields& text, ModelFamily family) {
  constexpr Range<int64_t> kCount{.low = 0, .high = 1 << 20};
  expect_string(text, "hidden_activation", "gelu_pytorch_tanh");
  expect_false(text, "attention_bias", "attention with biases");
  if (family == ModelFamily::kGemma3) {
    expect_false(text, "use_bidirectional_attention", "bidirectional text attention (EmbeddingGemma)");
    return;
  }
  // "vision" concerns image tokens only; text is plain causal.
  expect_string(text, "use_bidirectional_attention", "vision");
  expect_false(text, "enable_moe_block", "mixture of experts (MoE)");
  const int64_t ple = text.integer("hidden_size_per_layer_input", kCount, 256);
  check_as(ErrorKind::kUnsupported, ple == 0, text.path("hidden_size_per_layer_input"), " ", ple,
           text.has("hidden_size_per_layer_input") ? "" : " (the default)",
           ": per-layer input embeddings (PLE) are not supported, expected 0");
  const int64_t shared = text.integer("num_kv_shared_layers", kCount, 0);
  check_as(ErrorKind::kUnsupported, shared == 0, text.path("num_kv_shared_layers"), " ", shared,
           ": KV sharing between layers is not supported, expected 0");
}

/// sqrt(hidden_size) in the checkpoint's dtype: the reference casts it to the embedding's dtype before multiplying.
double read_embedding_scale(const Document& document, int hidden_size) {
  const std::string_view name = document.owner("dtype").has("dtype") ? "dtype" : "torch_dtype";
  const Fields& fields = document.owner(name);
  const std::string dtype = fields.string(name, "bfloat16");
  const auto exact = static_cast<float>(std::sqrt(static_cast<double>(hidden_size)));
  if (dtype == "float32") return exact;
  check_as(ErrorKind::kUnsupported, dtype == "bfloat16", fields.path(name), " ", printable(dtype),
           ": expected bfloat16 or float32");
  return to_float(to_bf16(exact));
}

/// Adds the ids of an `eos_token_id` field (one integer or a list) that are not there yet.
void merge_eos(const Fields& fields, int64_t vocab_size, std::vector<int>& ids) {
  const Json* field = fields.find("eos_token_id");
  if (field == nullptr) return;
  const auto add = [&](const Json& value) {
    const auto id =
        static_cast<int>(integer_value(value, fields.path("eos_token_id"), {.low = 0, .high = vocab_size - 1}));
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  };
  if (!field->is_array()) return add(*field);
  check(field->size() <= 256, fields.path("eos_token_id"), " with ", field->size(), " ids: expected at most 256");
  for (const Json& value : *field) add(value);
}

std::string read_quantization(const Document& document) {
  for (const std::string_view name : {"quantization_config", "compression_config"}) {
    if (const auto object = document.owner(name).object(name)) return object->json().dump();
  }
  return {};
}

ModelConfig read_config(const Document& document) {
  const Fields& text = document.text;
  ModelConfig config;
  config.family = read_family(document);
  refuse_unsupported(text, config.family);
  const bool gemma3 = config.family == ModelFamily::kGemma3;

  config.hidden_size = text.integer32("hidden_size", {.low = 1, .high = 1 << 17});
  config.intermediate_size = text.integer32("intermediate_size", {.low = 1, .high = 1 << 20});
  config.num_layers = text.integer32("num_hidden_layers", {.low = 1, .high = 1024});
  config.num_q_heads = text.integer32("num_attention_heads", {.low = 1, .high = 4096}, 8);
  config.vocab_size = text.integer("vocab_size", {.low = 1, .high = 1 << 24}, gemma3 ? 262208 : 262144);
  config.max_positions = text.integer("max_position_embeddings", {.low = 1, .high = 1 << 30}, 131072);
  config.rms_norm_eps = text.number("rms_norm_eps", {.low = 1e-12, .high = 1.0}, 1e-6);

  constexpr Range<double> kSoftcapRange{.low = 0.0, .high = 1e6};
  config.final_softcap = text.number("final_logit_softcapping", kSoftcapRange, 0.0);
  if (gemma3) {
    config.attention_softcap = text.number("attn_logit_softcapping", kSoftcapRange, 0.0);
    config.attention_scale = 1 / std::sqrt(text.number("query_pre_attn_scalar", {.low = 1e-6, .high = 1e9}, 256.0));
  }
  // The outer class owns the head, so its flag wins where both levels have one.
  const Fields& tie = document.top.has("tie_word_embeddings") ? document.top : text;
  config.tie_embeddings = tie.boolean("tie_word_embeddings", true);
  config.embedding_scale = read_embedding_scale(document, config.hidden_size);
  config.layers = read_layers(text, config);
  merge_eos(document.top, config.vocab_size, config.eos_token_ids);
  merge_eos(text, config.vocab_size, config.eos_token_ids);
  config.quantization_json = read_quantization(document);
  return config;
}

ModelConfig read_with_overrides(Json root, std::string_view overrides_json) {
  if (!overrides_json.empty()) {
    const Json overrides = parse_json(overrides_json, "hf-overrides");
    check(overrides.is_object(), "hf-overrides ", printable(overrides), ": expected a JSON object");
    root.merge_patch(overrides);
  }
  return read_config(open_document(root));
}

}  // namespace

ModelConfig parse_model_config(std::string_view config_json, std::string_view overrides_json) {
  return read_with_overrides(parse_json(config_json, "config.json"), overrides_json);
}

ModelConfig load_model_config(const std::filesystem::path& directory, std::string_view overrides_json) {
  std::error_code ignored;  // unreadable entries are reported by load_json
  check_as(ErrorKind::kNotFound, std::filesystem::is_directory(directory, ignored), "model directory ",
           directory.string(), ": expected a folder with config.json");
  ModelConfig config = read_with_overrides(load_json(directory / "config.json"), overrides_json);
  if (const auto path = directory / "generation_config.json"; std::filesystem::exists(path, ignored)) {
    const Json generation = load_json(path);
    merge_eos(Fields(generation, "generation_config"), config.vocab_size, config.eos_token_ids);
  }
  if (const auto path = directory / "hf_quant_config.json";
      config.quantization_json.empty() && std::filesystem::exists(path, ignored)) {
    config.quantization_json = load_json(path).dump();
  }
  return config;
}

}  // namespace quaver
