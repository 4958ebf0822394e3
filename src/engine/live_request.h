// A request between add() and its last output, as the scheduler sees it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kv_cache/manager.h"
#include "quaver/engine.h"

namespace quaver {

enum class Stage : uint8_t {
  kWaiting,   ///< holds nothing: new, or preempted
  kPrefill,   ///< has a slot and pages; known tokens are computed in chunks
  kDecode,    ///< one token a step
  kDraining,  ///< all its work is scheduled; holds nothing and waits for results
  kEnded,     ///< its last output is out; results that are still to come mean nothing
};

struct LiveRequest {
  LiveRequest(Request request, std::vector<int32_t> model_stop_ids)
      : id(request.id),
        params(std::move(request.params)),
        salt(std::move(request.cache_salt)),
        tokens(std::move(request.prompt)),
        prompt_len(std::ssize(tokens)),
        stop_ids(params.stop_token_ids) {
    if (!params.ignore_eos) stop_ids.insert(stop_ids.end(), model_stop_ids.begin(), model_stop_ids.end());
  }

  uint64_t id;
  RequestParams params;
  std::string salt;
  std::vector<int32_t> tokens;  ///< the prompt, then what was drawn
  int64_t prompt_len;
  std::vector<int32_t> stop_ids;

  Stage stage = Stage::kWaiting;
  uint64_t arrival = 0;       ///< first come, first served
  int64_t num_in_flight = 0;  ///< tokens that launched steps will draw
  bool admitted_before = false;
  int64_t cached_tokens = 0;  ///< at first admission

  // While it holds something (kPrefill, kDecode).
  int32_t slot = -1;
  SequencePages pages;      ///< pages.num_tokens: computed by the steps scheduled so far
  int64_t prefill_end = 0;  ///< tokens that are computed in chunks
  size_t decode_row = 0;    ///< its place among the decoding requests

  // Prompt tokens 1, 2, …: a preemption takes nothing back, since results of launched steps still count.
  int64_t num_logprobs_asked = 0;
  int64_t num_logprobs_seen = 0;

  /// Known tokens and those about to be.
  [[nodiscard]] int64_t length() const { return std::ssize(tokens) + num_in_flight; }
  [[nodiscard]] int64_t max_length() const { return prompt_len + params.max_tokens; }
  /// Tokens that ever need a place in the cache: the last one drawn is never computed.
  [[nodiscard]] int64_t tokens_to_store() const { return std::max(prompt_len, max_length() - 1); }
  [[nodiscard]] bool all_scheduled() const { return pages.num_tokens == tokens_to_store(); }
  [[nodiscard]] bool is_running() const { return stage == Stage::kPrefill || stage == Stage::kDecode; }
};

/// Shared with the steps in flight, which may outlive it.
using RequestPtr = std::shared_ptr<LiveRequest>;

}  // namespace quaver
