// A request between add() and its last output, as the scheduler sees it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
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
  LiveRequest(Request request, std::span<const int32_t> eos_token_ids)
      : prompt_len(std::ssize(request.prompt)),
        max_length(prompt_len + request.params.max_tokens),
        tokens(std::move(request.prompt)),
        spans(std::move(request.spans)),
        num_logprobs_wanted(request.params.prompt_logprobs >= 0 ? prompt_len - 1 : 0),
        id(request.id),
        stop_ids(request.params.stop_token_ids),
        params(std::move(request.params)),
        salt(std::move(request.cache_salt)) {
    if (!params.ignore_eos) stop_ids.insert(stop_ids.end(), eos_token_ids.begin(), eos_token_ids.end());
  }

  // What is looked at whenever a decoding request gets a page comes first: it has left the cache since the last time.
  Stage stage = Stage::kWaiting;
  int32_t slot = -1;          ///< kPrefill and kDecode have one
  uint64_t arrival = 0;       ///< first come, first served
  size_t decode_row = 0;      ///< kDecode: its place in DecodeRows, which has the newest tokens and counts
  int64_t num_in_flight = 0;  ///< tokens that launched steps will draw
  int64_t prompt_len;
  int64_t max_length;            ///< prompt and output
  std::vector<int32_t> tokens;   ///< the prompt, then what was drawn
  std::vector<TokenSpan> spans;  ///< of the prompt; no chunk ends inside one
  SequencePages pages;           ///< pages.num_tokens: computed by the steps scheduled so far

  int64_t prefill_end = 0;  ///< tokens that are computed in chunks, decided at admission
  // Prompt tokens 1, 2, …: a preemption takes nothing back, since results of launched steps still count.
  int64_t num_logprobs_wanted;
  int64_t num_logprobs_asked = 0;
  int64_t num_logprobs_seen = 0;
  uint64_t id;
  std::vector<int32_t> stop_ids;
  int64_t cached_tokens = 0;  ///< at first admission
  bool admitted_before = false;
  RequestParams params;
  std::string salt;

  /// Known tokens and those about to be.
  [[nodiscard]] int64_t length() const { return std::ssize(tokens) + num_in_flight; }
  /// Tokens that ever need a place in the cache: the last one drawn is never computed.
  [[nodiscard]] int64_t tokens_to_store() const { return std::max(prompt_len, max_length - 1); }
  [[nodiscard]] bool all_scheduled() const { return pages.num_tokens == tokens_to_store(); }
  [[nodiscard]] bool is_running() const { return stage == Stage::kPrefill || stage == Stage::kDecode; }
};

}  // namespace quaver
