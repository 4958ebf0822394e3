#include "engine/read_draws.h"

#include <string>

#include "core/check.h"
#include "ops/sampling.h"

namespace quaver {
namespace {

std::string reason_of(DrawStatus status, int64_t vocab_size) {
  return status == DrawStatus::kNoNumber
             ? concat("logits: expected at least one of ", vocab_size, " above -inf and not NaN")
             : "logits: expected finite numbers for log-probabilities";
}

TokenLogprobs logprobs_of(const DrawnLogprobs& drawn) {
  const double normaliser = log_of(drawn.sum);
  const auto logprob = [&](float logit) { return static_cast<float>(logit - normaliser); };
  TokenLogprobs result{.token = drawn.token, .logprob = logprob(drawn.logit), .rank = drawn.rank, .top = {}};
  for (const TokenLogit& each : std::span(drawn.top).first(static_cast<size_t>(drawn.num_top))) {
    result.top.emplace_back(each.id, logprob(each.logit));
  }
  return result;
}

}  // namespace

StepResult read_draws(const Step& step, const DrawnRows& rows, int64_t vocab_size) {
  StepResult result;
  const auto is_ok = [&](int32_t slot, DrawStatus status) {
    if (status != DrawStatus::kOk) result.failures.push_back({.slot = slot, .reason = reason_of(status, vocab_size)});
    return status == DrawStatus::kOk;
  };
  for (const Step::PromptLogprob& wanted : step.prompt_logprobs) {
    const DrawnLogprobs& drawn = rows.target_logprobs[static_cast<size_t>(wanted.logit_row)];
    result.prompt_logprobs.push_back(is_ok(wanted.slot, drawn.status) ? logprobs_of(drawn) : TokenLogprobs{});
  }
  for (const Step::Sample& sample : step.samples) {
    const auto row = static_cast<size_t>(sample.logit_row);
    const Drawn& drawn = rows.drawn[row];
    result.tokens.push_back(drawn.token);
    result.logprobs.emplace_back();
    const bool ok = is_ok(sample.slot, drawn.status);
    if (ok && drawn.has_logprobs) result.logprobs.back() = logprobs_of(rows.sample_logprobs[row]);
  }
  return result;
}

}  // namespace quaver
