// The generate loop. C++ works without the GIL; each new token takes it for the caller's function.
#include "engine/generator.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <utility>

#include "bindings/bindings.h"
#include "bindings/names.h"
#include "engine/attention_probe.h"

namespace nb = nanobind;

namespace quaver::bindings {
namespace {

Generator load(const std::filesystem::path& directory, std::string_view kv_cache_dtype, int block_size,
               int64_t max_model_len, std::string_view kv_scales, std::string_view attention_precision,
               const std::optional<std::string>& attention_kernel, int64_t prefill_chunk, bool batch_invariant,
               const std::string& hf_overrides, std::optional<uint64_t> dummy_seed) {
  GeneratorOptions options{.kv_dtype = kv_dtype_by_name(kv_cache_dtype),
                           .block_size = block_size,
                           .max_model_len = max_model_len,
                           .prefill_chunk = prefill_chunk,
                           .kv_scales = kv_scales_by_name(kv_scales)};
  options.model.batch_invariant = batch_invariant;
  options.model.attention_precision = precision_by_name(attention_precision);
  if (attention_kernel) options.model.attention_kernel = kernel_by_name(*attention_kernel);
  const nb::gil_scoped_release release;
  if (dummy_seed) return Generator::load_dummy(directory, options, *dummy_seed, hf_overrides);
  return Generator::load(directory, options, hf_overrides);
}

/// on_token(id) -> bool, or None. Ctrl-C ends the generation as a Python exception.
TokenCallback callback_for(const std::optional<nb::callable>& on_token) {
  return [&on_token](int32_t token) {
    const nb::gil_scoped_acquire acquire;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    return !on_token || nb::cast<bool>((*on_token)(token));
  };
}

GenerationResult generate(Generator& generator, const std::vector<int32_t>& prompt,
                          const std::optional<nb::callable>& on_token, int64_t max_tokens, double temperature,
                          int top_k, double top_p, double min_p, uint64_t seed, bool ignore_eos,
                          std::vector<int32_t> stop_token_ids) {
  const GenerationParams params{
      .sampling = {.temperature = temperature, .top_k = top_k, .top_p = top_p, .min_p = min_p, .seed = seed},
      .max_tokens = max_tokens,
      .ignore_eos = ignore_eos,
      .stop_token_ids = std::move(stop_token_ids)};
  const TokenCallback callback = callback_for(on_token);
  const nb::gil_scoped_release release;
  return generator.generate(prompt, params, callback);
}

// Float64 attention costs as much as a decode step; every 8th step leaves the measured speed as it is.
constexpr int64_t kProbeInterval = 8;

/// A fresh probe that observes `generator` from now on, in place of an earlier one.
std::shared_ptr<AttentionProbe> probe_attention(Generator& generator) {
  auto probe = std::make_shared<AttentionProbe>(generator.model(), kProbeInterval);
  generator.set_observer([probe](const LayerObservation& observation) { probe->observe(observation); });
  return probe;
}

using FloatRows = nb::ndarray<nb::numpy, float, nb::ndim<2>>;  // owns its memory

FloatRows logits(Generator& generator, const std::vector<int32_t>& tokens, const std::vector<int32_t>& rows,
                 const std::vector<std::pair<int64_t, int64_t>>& spans) {
  auto values = std::make_unique<std::vector<float>>();
  {
    const nb::gil_scoped_release release;
    *values = generator.logits(tokens, rows, token_spans(spans));
  }
  float* const data = values->data();
  const nb::capsule owner(values.get(), [](void* memory) noexcept { delete static_cast<std::vector<float>*>(memory); });
  values.release();  // NOLINT(bugprone-unused-return-value): the capsule owns it now
  return {data, {rows.size(), static_cast<size_t>(generator.config().vocab_size)}, owner};
}

std::vector<double> token_logprobs(Generator& generator, const std::vector<int32_t>& tokens) {
  const nb::gil_scoped_release release;
  return generator.token_logprobs(tokens);
}

}  // namespace

void bind_generator(nb::module_& module) {
  module.def(
      "check_sampling",
      [](double temperature, int top_k, double top_p, double min_p) {
        check_sampling_params({.temperature = temperature, .top_k = top_k, .top_p = top_p, .min_p = min_p});
      },
      nb::arg("temperature"), nb::arg("top_k"), nb::arg("top_p"), nb::arg("min_p"),
      "Raises ValueError naming the setting that is out of range");
  nb::class_<GenerationResult>(module, "GenerationResult")
      .def_ro("tokens", &GenerationResult::tokens)
      .def_prop_ro("finish_reason",
                   [](const GenerationResult& result) { return finish_reason_name(result.finish_reason); })
      .def_ro("prompt_tokens", &GenerationResult::prompt_tokens)
      .def_ro("ttft_s", &GenerationResult::ttft_s)
      .def_ro("decode_s", &GenerationResult::decode_s)
      .def_ro("decode_tokens_per_s", &GenerationResult::decode_tokens_per_s);

  nb::class_<AttentionErrors>(module, "AttentionErrors", "Relative L2 errors of attention outputs against float64")
      .def_ro("same_cache", &AttentionErrors::same_cache)
      .def_ro("exact_cache", &AttentionErrors::exact_cache)
      .def_ro("rows", &AttentionErrors::rows);
  nb::class_<AttentionProbe>(module, "AttentionProbe", "Measures the attention of a running generation")
      .def("errors", &AttentionProbe::errors);

  nb::class_<Generator>(module, "Generator", "One model, one prompt at a time; not thread-safe")
      .def_static("load", &load, nb::arg("directory"), nb::kw_only(), nb::arg("kv_cache_dtype") = "fp8",
                  nb::arg("block_size") = 64, nb::arg("max_model_len") = 0, nb::arg("kv_scales") = "auto",
                  nb::arg("attention_precision") = "auto", nb::arg("attention_kernel") = nb::none(),
                  nb::arg("prefill_chunk") = 512, nb::arg("batch_invariant") = false, nb::arg("hf_overrides") = "",
                  nb::arg("dummy_seed") = nb::none(),
                  "Loads a Hugging Face folder; with dummy_seed, random weights of its shapes")
      .def("generate", &generate, nb::arg("prompt"), nb::arg("on_token") = nb::none(), nb::kw_only(),
           nb::arg("max_tokens") = 16, nb::arg("temperature") = 0.0, nb::arg("top_k") = 0, nb::arg("top_p") = 1.0,
           nb::arg("min_p") = 0.0, nb::arg("seed") = 0, nb::arg("ignore_eos") = false,
           nb::arg("stop_token_ids") = std::vector<int32_t>{},
           "Continues `prompt` (token ids); on_token(id) is called with each new token and returns False to stop")
      .def("probe_attention", &probe_attention, nb::keep_alive<0, 1>(),
           "Measures the attention of the generations that follow; returns the AttentionProbe")
      .def("logits", &logits, nb::arg("tokens"), nb::arg("rows"),
           nb::arg("spans") = std::vector<std::pair<int64_t, int64_t>>{},
           "Logits [len(rows), vocab] after each of the tokens `rows`, ascending indices; spans: [(first, last)] of "
           "images, whose tokens see each other")
      .def("token_logprobs", &token_logprobs, nb::arg("tokens"),
           "log P(tokens[i+1] | tokens[0 to i]) for every token but the first")
      .def_prop_ro("config", &Generator::config, nb::rv_policy::reference_internal)
      .def_prop_ro("max_model_len", &Generator::max_model_len)
      .def_prop_ro("kv_bytes_per_token", &Generator::kv_bytes_per_token)
      .def_prop_ro("notes", &Generator::notes);
}

}  // namespace quaver::bindings
