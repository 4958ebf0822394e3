// What config.json says of a model, and what follows from it without loading anything.
#include "quaver/model.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "bindings/bindings.h"
#include "bindings/names.h"
#include "model/cpu_model.h"
#include "model/device_memory.h"

namespace nb = nanobind;

namespace quaver::bindings {
namespace {

std::vector<CacheGroup> cache_groups(const ModelConfig& config, std::string_view kv_cache_dtype, int block_size) {
  return plan_cache(cache_specs(config, kv_dtype_by_name(kv_cache_dtype)), block_size).groups;
}

std::string memory_of(const ModelConfig& config, std::string_view kv_cache_dtype, int block_size, int64_t max_model_len,
                      int64_t chunk_tokens, int64_t max_num_seqs) {
  const CachePlan plan = plan_cache(cache_specs(config, kv_dtype_by_name(kv_cache_dtype)), block_size);
  return to_string(device_memory(
      config, plan,
      {.max_model_len = max_model_len,
       .chunk_tokens = std::min(chunk_tokens, max_model_len),
       .step = {
           .max_tokens = chunk_tokens + max_num_seqs, .max_sequences = max_num_seqs, .max_logit_rows = max_num_seqs}}));
}

}  // namespace

void bind_model(nb::module_& module) {
  nb::class_<ModelConfig>(module, "ModelConfig", "What config.json says of a model")
      .def_ro("hidden_size", &ModelConfig::hidden_size)
      .def_ro("num_layers", &ModelConfig::num_layers)
      .def_ro("num_q_heads", &ModelConfig::num_q_heads)
      .def_ro("vocab_size", &ModelConfig::vocab_size)
      .def_ro("max_positions", &ModelConfig::max_positions)
      .def_ro("attention_softcap", &ModelConfig::attention_softcap)
      .def_ro("eos_token_ids", &ModelConfig::eos_token_ids);
  module.def("load_model_config", &load_model_config, nb::arg("directory"), nb::arg("hf_overrides") = "",
             "Reads DIR/config.json; raises ValueError for a model that Quaver does not run");
  nb::class_<CacheGroup>(module, "CacheGroup", "Layers of one kind that share a block table")
      .def_ro("layout", &CacheGroup::layout)
      .def_ro("window", &CacheGroup::window)
      .def_ro("layers", &CacheGroup::layers);
  module.def("cache_groups", &cache_groups, nb::arg("config"), nb::arg("kv_cache_dtype"), nb::arg("block_size"),
             "The cache groups of a model");
  module.def("device_memory", &memory_of, nb::arg("config"), nb::arg("kv_cache_dtype"), nb::arg("block_size"),
             nb::arg("max_model_len"), nb::arg("chunk_tokens"), nb::arg("max_num_seqs"),
             "What the model needs of a GPU's memory, in one line");
}

}  // namespace quaver::bindings
