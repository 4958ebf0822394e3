#include "engine/request_checks.h"

#include "core/check.h"
#include "kv_cache/token_spans.h"

namespace quaver {
namespace {

constexpr float kMaxBias = 100;

void check_id(const char* name, int32_t id, int64_t vocab_size) {
  check(id >= 0 && id < vocab_size, name, " ", id, ": expected 0 to ", vocab_size - 1);
}

void check_num_logprobs(const char* name, int count) {
  check(count >= -1 && count <= kMaxLogprobs, name, " ", count, ": expected 0 to ", kMaxLogprobs, ", or -1 for none");
}

}  // namespace

void check_request_params(const RequestParams& params, int64_t vocab_size) {
  check_sampling_params(params.sampling);
  check(params.max_tokens >= 0, "max_tokens ", params.max_tokens, ": expected >= 0");
  check(params.min_tokens >= 0 && params.min_tokens <= params.max_tokens, "min_tokens ", params.min_tokens,
        ": expected 0 to max_tokens ", params.max_tokens);
  for (const int32_t id : params.stop_token_ids) check_id("stop_token_ids", id, vocab_size);
  for (const auto& [id, bias] : params.logit_bias) {
    check_id("logit_bias id", id, vocab_size);
    check(bias >= -kMaxBias && bias <= kMaxBias, "logit_bias ", bias, " of id ", id, ": expected in [", -kMaxBias, ", ",
          kMaxBias, "]");
  }
  check_num_logprobs("logprobs", params.logprobs);
  check_num_logprobs("prompt_logprobs", params.prompt_logprobs);
}

void check_request_spans(std::span<const TokenSpan> spans, int64_t num_tokens, int64_t most) {
  check_spans(spans, num_tokens);
  for (const TokenSpan& span : spans) {
    check(span.last - span.first <= most, "span [", span.first, ", ", span.last, "): expected at most ", most,
          " tokens, what one step computes of a prompt");
  }
}

}  // namespace quaver
