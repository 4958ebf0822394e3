// Where the time of a step goes on a GPU: `quaver bench offline --profile`.
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "bindings/names.h"
#include "engine/load_runner.h"
#include "engine/step_profile.h"

namespace nb = nanobind;

namespace quaver::bindings {
namespace {

constexpr double kMilli = 1e3;

nb::dict part_fields(const PartProfile& part) {
  nb::dict fields;
  fields["ms"] = part.seconds * kMilli;
  fields["begins"] = part.launches;
  fields["bytes"] = part.cost.bytes;
  fields["fp8_flops"] = part.cost.fp8_flops;
  fields["bf16_flops"] = part.cost.bf16_flops;
  fields["least_ms"] = least_seconds(part.cost) * kMilli;
  return fields;
}

nb::dict step_fields(const StepProfile& step) {
  nb::dict parts;
  for (const PartProfile& part : step.parts) {
    const std::string_view name = part_name(part.part);
    parts[nb::str(name.data(), name.size())] = part_fields(part);
  }
  nb::dict fields;
  fields["step"] = step.name;
  fields["sequences"] = step.load.sequences.size();
  fields["tokens"] = step.load.num_tokens();
  fields["context"] = step.load.sequences.front().kv_len;
  fields["step_ms"] = step.step_seconds * kMilli;
  fields["after_idle_ms"] = step.after_idle_seconds * kMilli;
  fields["gaps_ms"] = step.gap_seconds() * kMilli;
  fields["parts"] = parts;
  return fields;
}

nb::list profile(const std::filesystem::path& directory, std::string_view device, std::string_view kv_cache_dtype,
                 int block_size, int64_t kv_cache_memory_bytes, double gpu_memory_utilization,
                 std::string_view kv_scales, std::string_view attention_precision, std::string hf_overrides,
                 std::optional<uint64_t> dummy_seed, int64_t decode_sequences, int64_t context, int64_t prefill_tokens,
                 bool batch_invariant) {
  const RunnerOptions options{.kv_dtype = kv_dtype_by_name(kv_cache_dtype),
                              .block_size = block_size,
                              .kv_cache_bytes = kv_cache_memory_bytes,
                              .memory_utilization = gpu_memory_utilization,
                              .kv_scales = kv_scales_by_name(kv_scales),
                              .attention_precision = precision_by_name(attention_precision),
                              .dummy_seed = dummy_seed,
                              .hf_overrides = std::move(hf_overrides)};
  std::vector<StepProfile> steps;
  {
    const nb::gil_scoped_release release;
    const Device where = device_by_name(device);
    check_as(ErrorKind::kUnsupported, where.kind == Device::Kind::kCuda, "profile on ", to_string(where),
             ": expected a GPU");
    steps = profile_steps(where.index, directory, options,
                          {.decode_sequences = decode_sequences,
                           .context = context,
                           .prefill_tokens = prefill_tokens,
                           .batch_invariant = batch_invariant});
  }
  nb::list result;
  for (const StepProfile& step : steps) result.append(step_fields(step));
  return result;
}

}  // namespace

void bind_profile(nb::module_& module) {
  module.def("profile_steps", &profile, nb::arg("directory"), nb::kw_only(), nb::arg("device") = "auto",
             nb::arg("kv_cache_dtype") = "fp8", nb::arg("block_size") = 64, nb::arg("kv_cache_memory_bytes") = 0,
             nb::arg("gpu_memory_utilization") = 0.9, nb::arg("kv_scales") = "auto",
             nb::arg("attention_precision") = "auto", nb::arg("hf_overrides") = "", nb::arg("dummy_seed") = nb::none(),
             nb::arg("decode_sequences"), nb::arg("context"), nb::arg("prefill_tokens"),
             nb::arg("batch_invariant") = false, "Parts of a prefill step and a decode step on a GPU, as dictionaries");
}

}  // namespace quaver::bindings
