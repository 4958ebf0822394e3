#include "attention/vllm_version.h"

#include <algorithm>
#include <array>

#include "core/check.h"

namespace quaver {
namespace {

// Rule 5: why SM90 goes from FA3 to FA4, first reason first; nullopt: it stays.
std::optional<std::string> sm90_upgrade(const VllmVersionQuery& query) {
  const bool both = query.head_size.has_value() && query.head_size_v.has_value();
  if (query.head_size.value_or(0) > 256) return "rule 5a: SM90 with a head size above 256 needs FA4";
  if (query.has_sinks && both && *query.head_size != *query.head_size_v) {
    return "rule 5b: SM90 with sinks and different K and V head sizes needs FA4";
  }
  if (query.is_diffusion) return "rule 5c: SM90 with per-sequence causal flags needs FA4";
  // The rule of November 2026; unlike 5a to 5c it leaves a version alone that the user set.
  constexpr std::array kNativeFp8HeadSizes{64, 96, 128, 192, 256};
  if (query.kv_cache_e4m3 && both && *query.head_size == *query.head_size_v &&
      std::ranges::find(kNativeFp8HeadSizes, *query.head_size) != kNativeFp8HeadSizes.end() && !query.softcap &&
      !query.batch_invariant && !query.explicit_version) {
    return "rule 5d: SM90 with an E4M3 KV cache has a native FP8 forward in FA4 at this head size";
  }
  return std::nullopt;
}

// Rule 9.
bool runs(int version, const VllmVersionQuery& query) {
  const int major = query.capability_major;
  if (version == 2) return major >= 8;
  if (version == 3) return query.fa3_available && major == 9;
  return version == 4 && query.fa4_available && major >= 9 && major <= 11;
}

}  // namespace

VllmVersion vllm_flash_attention_version(const VllmVersionQuery& query) {
  if (query.platform == VllmVersionQuery::Platform::kXpu) return {2, "rule 0: XPU uses FA2"};
  if (query.platform == VllmVersionQuery::Platform::kRocm) return {std::nullopt, "rule 0: ROCm uses another backend"};
  const int major = query.capability_major;
  VllmVersion choice{2, "rule 1: FA2 is the default of this device"};
  if (major == 9 && query.fa3_available) choice = {3, "rule 1: FA3 is the default on SM90"};
  if (major == 10 && query.fa4_available) choice = {4, "rule 1: FA4 is the default on SM100"};
  if (query.explicit_version) {
    choice = {query.explicit_version, concat("rule 2: the user set version ", *query.explicit_version)};
  }
  if (major >= 10 && choice.version == 3) {
    choice = {query.fa4_available ? 4 : 2, "rule 3: FA3 does not run on Blackwell"};
  }
  if (query.requires_alibi && (choice.version == 3 || choice.version == 4)) {
    choice = {2, "rule 4: only FA2 has ALiBi"};
  }
  if (choice.version == 3 && major == 9 && query.fa4_available) {
    if (const auto reason = sm90_upgrade(query)) choice = {4, *reason};
  }
  if (query.batch_invariant && choice.version == 4) choice = {2, "rule 6: FA4 is not batch invariant"};
  if (choice.version == 4 && major >= 10 && query.head_size == 256) {
    choice = {2, "rule 7: FA4 on Blackwell leaves head size 256 to FA2"};
  }
  if (choice.version == 4 && major >= 10 && query.head_size.value_or(0) > 128 &&
      !(query.head_size == 192 && query.head_size_v == 128)) {
    choice = {2, "rule 8: head sizes above 128 do not fit tensor memory, except 192 with 128"};
  }
  const int version = choice.version.value_or(0);
  if (!runs(version, query)) {
    return {std::nullopt, concat("rule 9: version ", version, " does not run on this device")};
  }
  return choice;
}

}  // namespace quaver
