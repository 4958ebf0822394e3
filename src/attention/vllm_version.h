// The source system's choice of a FlashAttention generation, as a pure function. It is kept for people who come from
// there and want to know what their flags meant: `quaver explain` shows it beside our own decision, nothing runs by it.
// Source: vLLM get_flash_attn_version (vllm/v1/attention/backends/fa_utils.py, commit 017e9f4448), and the FP8 rule
// proposed in November 2026.
#pragma once

#include <optional>
#include <string>

namespace quaver {

struct VllmVersionQuery {
  enum class Platform { kCuda, kRocm, kXpu };
  Platform platform = Platform::kCuda;
  int capability_major = 9;             ///< 9: Hopper, 10 and 11: Blackwell
  bool fa3_available = true;            ///< the package was built with it
  bool fa4_available = true;            ///< likewise
  std::optional<int> explicit_version;  ///< the user's flash_attn_version: 2, 3 or 4
  std::optional<int> head_size;
  std::optional<int> head_size_v;
  bool requires_alibi = false;
  bool has_sinks = false;
  bool is_diffusion = false;  ///< per-sequence causal flags
  bool batch_invariant = false;
  bool kv_cache_e4m3 = false;
  bool softcap = false;
};

struct VllmVersion {
  std::optional<int> version;  ///< 2, 3 or 4; empty: FlashAttention is not used
  std::string reason;          ///< the last rule that changed the version, in one sentence
};

[[nodiscard]] VllmVersion vllm_flash_attention_version(const VllmVersionQuery& query);

}  // namespace quaver
