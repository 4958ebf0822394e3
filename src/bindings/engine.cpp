// The serving engine. C++ works without the GIL; one call, wait(), brings back what many requests got.
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "bindings/bindings.h"
#include "bindings/names.h"
#include "engine/load_runner.h"
#include "quaver/engine.h"

namespace nb = nanobind;

namespace quaver::bindings {
namespace {

/// An engine, what Python asks about its model, and a close() that waits for the calls of other threads.
class ServingEngine {
 public:
  ServingEngine(LoadedRunner loaded, Device device, const EngineOptions& options)
      : config_(std::move(loaded.config)),
        notes_(std::move(loaded.notes)),
        device_(to_string(device)),
        kv_bytes_per_token_(loaded.runner->cache_plan().token_bytes()) {
    std::vector<int32_t> eos_token_ids(config_.eos_token_ids.begin(), config_.eos_token_ids.end());
    engine_ = std::make_unique<Engine>(std::move(loaded.runner), options, std::move(eos_token_ids));
    max_model_len_ = engine_->max_model_len();
    max_request_tokens_ = engine_->max_request_tokens();
  }
  ~ServingEngine() { close(); }
  ServingEngine(const ServingEngine&) = delete;
  ServingEngine& operator=(const ServingEngine&) = delete;
  ServingEngine(ServingEngine&&) = delete;
  ServingEngine& operator=(ServingEngine&&) = delete;

  template <class Call>
  auto with_engine(const Call& call) {
    const nb::gil_scoped_release release;
    check_open();
    const std::shared_lock lock(mutex_);
    check_open();
    return call(*engine_);
  }
  void close() {
    const nb::gil_scoped_release release;
    closed_ = true;  // before the lock: no further call may take it
    const std::scoped_lock lock(mutex_);
    engine_.reset();
  }

  [[nodiscard]] const ModelConfig& config() const { return config_; }
  [[nodiscard]] const std::vector<std::string>& notes() const { return notes_; }
  [[nodiscard]] const std::string& device() const { return device_; }
  [[nodiscard]] int64_t kv_bytes_per_token() const { return kv_bytes_per_token_; }
  [[nodiscard]] int64_t max_model_len() const { return max_model_len_; }
  [[nodiscard]] int64_t max_request_tokens() const { return max_request_tokens_; }
  /// Ids of Python's size as the engine's, refused where they are none.
  [[nodiscard]] int32_t token_id(std::string_view field, int64_t id) const {
    check(id >= 0 && id < config_.vocab_size, field, " ", id, ": expected 0 to ", config_.vocab_size - 1);
    return static_cast<int32_t>(id);
  }

 private:
  void check_open() const { check_as(ErrorKind::kInternal, !closed_, "engine: expected one that is not closed"); }

  ModelConfig config_;
  std::vector<std::string> notes_;
  std::string device_;
  int64_t kv_bytes_per_token_ = 0;
  int64_t max_model_len_ = 0;
  int64_t max_request_tokens_ = 0;
  std::atomic<bool> closed_ = false;
  std::shared_mutex mutex_;  // shared: calls; exclusive: close()
  std::unique_ptr<Engine> engine_;
};

std::unique_ptr<ServingEngine> load(const std::filesystem::path& directory, std::string_view kv_cache_dtype,
                                    std::vector<int> kv_cache_dtype_skip_layers, int block_size, int64_t max_model_len,
                                    int64_t kv_cache_memory_bytes, double gpu_memory_utilization, int64_t max_num_seqs,
                                    int64_t max_num_batched_tokens, int64_t prefill_chunk_tokens, bool prefix_caching,
                                    bool batch_invariant, std::string_view kv_scales,
                                    std::string_view attention_precision, std::string hf_overrides,
                                    std::optional<uint64_t> dummy_seed, int num_threads, std::string_view device,
                                    bool cuda_graphs) {
  const RunnerOptions runner{.kv_dtype = kv_dtype_by_name(kv_cache_dtype),
                             .kv_dtype_skip_layers = std::move(kv_cache_dtype_skip_layers),
                             .block_size = block_size,
                             .kv_cache_bytes = kv_cache_memory_bytes,
                             .memory_utilization = gpu_memory_utilization,
                             .kv_scales = kv_scales_by_name(kv_scales),
                             .attention_precision = precision_by_name(attention_precision),
                             .num_threads = num_threads,
                             .cuda_graphs = cuda_graphs,
                             .dummy_seed = dummy_seed,
                             .hf_overrides = std::move(hf_overrides)};
  const EngineOptions engine{.max_model_len = max_model_len,
                             .max_num_seqs = max_num_seqs,
                             .max_num_batched_tokens = max_num_batched_tokens,
                             .prefill_chunk_tokens = prefill_chunk_tokens,
                             .prefix_caching = prefix_caching,
                             .batch_invariant = batch_invariant};
  const nb::gil_scoped_release release;
  const Device where = device_by_name(device);
  return std::make_unique<ServingEngine>(load_runner(where, directory, runner, engine), where, engine);
}

void add(ServingEngine& engine, uint64_t request_id, const std::vector<int64_t>& prompt, double temperature, int top_k,
         double top_p, double min_p, double repetition_penalty, double presence_penalty, double frequency_penalty,
         uint64_t seed, int64_t max_tokens, int64_t min_tokens, bool ignore_eos,
         const std::vector<int64_t>& stop_token_ids, const std::map<int64_t, float>& logit_bias, int logprobs,
         int prompt_logprobs, const std::vector<std::pair<int64_t, int64_t>>& spans, std::string cache_salt) {
  Request request{
      .id = request_id, .prompt = {}, .params = {}, .spans = token_spans(spans), .cache_salt = std::move(cache_salt)};
  request.prompt.reserve(prompt.size());
  for (const int64_t id : prompt) request.prompt.push_back(engine.token_id("prompt token id", id));
  RequestParams& params = request.params;
  params.sampling = {.temperature = temperature,
                     .top_k = top_k,
                     .top_p = top_p,
                     .min_p = min_p,
                     .repetition_penalty = repetition_penalty,
                     .presence_penalty = presence_penalty,
                     .frequency_penalty = frequency_penalty,
                     .seed = seed};
  params.max_tokens = max_tokens;
  params.min_tokens = min_tokens;
  params.ignore_eos = ignore_eos;
  for (const int64_t id : stop_token_ids) params.stop_token_ids.push_back(engine.token_id("stop_token_ids", id));
  for (const auto& [id, bias] : logit_bias) params.logit_bias.emplace_back(engine.token_id("logit_bias id", id), bias);
  params.logprobs = logprobs;
  params.prompt_logprobs = prompt_logprobs;
  engine.with_engine([&](Engine& running) { running.add(std::move(request)); });
}

const Output::Details& details_of(const Output& output) {
  static const Output::Details none;
  return output.details ? *output.details : none;
}

void bind_results(nb::module_& module) {
  nb::class_<TokenLogprobs>(module, "TokenLogprobs", "Natural logarithms of softmax(logits)")
      .def_ro("token", &TokenLogprobs::token)
      .def_ro("logprob", &TokenLogprobs::logprob)
      .def_ro("rank", &TokenLogprobs::rank)
      .def_ro("top", &TokenLogprobs::top);
  nb::class_<Output>(module, "Output", "What one step did for one request")
      .def_ro("request_id", &Output::request_id)
      .def_ro("token", &Output::token)
      .def_prop_ro("logprobs", [](const Output& output) { return details_of(output).logprobs; })
      .def_prop_ro("prompt_logprobs", [](const Output& output) { return details_of(output).prompt_logprobs; })
      .def_prop_ro("finish_reason",
                   [](const Output& output) -> std::optional<std::string_view> {
                     if (!output.finish_reason) return std::nullopt;
                     return finish_reason_name(*output.finish_reason);
                   })
      .def_ro("cached_tokens", &Output::cached_tokens)
      .def_prop_ro("error", [](const Output& output) { return details_of(output).error; });
  nb::class_<EngineStats>(module, "EngineStats", "A moment's counts; *_total since the start")
      .def_ro("num_running", &EngineStats::num_running)
      .def_ro("num_waiting", &EngineStats::num_waiting)
      .def_ro("num_pages", &EngineStats::num_pages)
      .def_ro("num_free_pages", &EngineStats::num_free_pages)
      .def_ro("steps_total", &EngineStats::steps_total)
      .def_ro("prompt_tokens_total", &EngineStats::prompt_tokens_total)
      .def_ro("cached_tokens_total", &EngineStats::cached_tokens_total)
      .def_ro("generated_tokens_total", &EngineStats::generated_tokens_total)
      .def_ro("preemptions_total", &EngineStats::preemptions_total)
      .def_ro("failed_steps_total", &EngineStats::failed_steps_total);
}

}  // namespace

void bind_engine(nb::module_& module) {
  bind_results(module);
  module.def("num_gpus", &num_gpus, "GPUs that this process sees; 0 in a build without CUDA");
  module.def(
      "resolve_device", [](std::string_view name) { return to_string(device_by_name(name)); }, nb::arg("name"),
      R"("cpu" or "cuda:N" for auto, cpu, cuda or cuda:N; raises ValueError where there is none)");
  nb::class_<ServingEngine>(module, "Engine", "Continuous batching of many requests; any thread may call")
      .def_static(
          "load", &load, nb::arg("directory"), nb::kw_only(), nb::arg("kv_cache_dtype") = "fp8",
          nb::arg("kv_cache_dtype_skip_layers") = std::vector<int>{}, nb::arg("block_size") = 64,
          nb::arg("max_model_len") = 0, nb::arg("kv_cache_memory_bytes") = 0, nb::arg("gpu_memory_utilization") = 0.9,
          nb::arg("max_num_seqs") = 256, nb::arg("max_num_batched_tokens") = 2048, nb::arg("prefill_chunk_tokens") = 0,
          nb::arg("prefix_caching") = true, nb::arg("batch_invariant") = false, nb::arg("kv_scales") = "auto",
          nb::arg("attention_precision") = "auto", nb::arg("hf_overrides") = "", nb::arg("dummy_seed") = nb::none(),
          nb::arg("num_threads") = 0, nb::arg("device") = "auto", nb::arg("cuda_graphs") = true,
          "Loads a Hugging Face folder and starts the engine; with dummy_seed, random weights")
      .def("add", &add, nb::arg("request_id"), nb::arg("prompt"), nb::kw_only(), nb::arg("temperature") = 0.0,
           nb::arg("top_k") = 0, nb::arg("top_p") = 1.0, nb::arg("min_p") = 0.0, nb::arg("repetition_penalty") = 1.0,
           nb::arg("presence_penalty") = 0.0, nb::arg("frequency_penalty") = 0.0, nb::arg("seed") = 0,
           nb::arg("max_tokens") = 16, nb::arg("min_tokens") = 0, nb::arg("ignore_eos") = false,
           nb::arg("stop_token_ids") = std::vector<int64_t>{}, nb::arg("logit_bias") = std::map<int64_t, float>{},
           nb::arg("logprobs") = -1, nb::arg("prompt_logprobs") = -1,
           nb::arg("spans") = std::vector<std::pair<int64_t, int64_t>>{}, nb::arg("cache_salt") = "",
           "Queues a request (token ids); raises ValueError naming the field of one that can never run")
      .def(
          "abort",
          [](ServingEngine& engine, uint64_t id) { engine.with_engine([id](Engine& running) { running.abort(id); }); },
          nb::arg("request_id"), "Ends a request; unknown ids are ignored")
      .def(
          "wait",
          [](ServingEngine& engine, double timeout_s) {
            return engine.with_engine([timeout_s](Engine& running) { return running.wait(timeout_s); });
          },
          nb::arg("timeout_s"), "Outputs since the last call, waiting up to timeout_s for the first; one caller")
      .def("stats",
           [](ServingEngine& engine) {
             return engine.with_engine([](const Engine& running) { return running.stats(); });
           })
      .def(
          "failure",
          [](ServingEngine& engine) {
            return engine.with_engine([](const Engine& running) { return running.failure(); });
          },
          "Why the engine no longer runs; empty while it does")
      .def("close", &ServingEngine::close, "Aborts what is left and ends the engine's threads")
      .def_prop_ro("max_model_len", &ServingEngine::max_model_len)
      .def_prop_ro("max_request_tokens", &ServingEngine::max_request_tokens,
                   "Most tokens of one request: max_model_len, or less if the pool is too small for that")
      .def_prop_ro("config", &ServingEngine::config, nb::rv_policy::reference_internal)
      .def_prop_ro("notes", &ServingEngine::notes)
      .def_prop_ro("device", &ServingEngine::device, R"("cpu" or "cuda:N")")
      .def_prop_ro("kv_bytes_per_token", &ServingEngine::kv_bytes_per_token);
}

}  // namespace quaver::bindings
