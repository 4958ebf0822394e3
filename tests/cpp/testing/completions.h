// Requests of all kinds, and what an engine makes of them: for tests that compare them bit for bit.
#pragma once

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "quaver/engine.h"
#include "testing/tiny_generator.h"

namespace quaver::testing {

struct Completion {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;         // of the tokens and the best three of each step
  std::vector<float> prompt_logprobs;  // likewise
  std::optional<FinishReason> finish_reason;
  int64_t cached_tokens = 0;
};

inline void take_logprobs(const TokenLogprobs& from, std::vector<float>& to) {
  to.push_back(from.logprob);
  for (const auto& [id, logprob] : from.top) to.push_back(logprob);
}

/// Completions by id, of requests that run at the same time.
inline std::map<uint64_t, Completion> complete(Engine& engine, const std::vector<Request>& requests) {
  std::map<uint64_t, Completion> completions;
  for (const Request& request : requests) {
    completions[request.id] = {};
    engine.add(request);
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  size_t num_ended = 0;
  while (num_ended < requests.size() && std::chrono::steady_clock::now() < deadline) {
    for (const Output& output : engine.wait(0.1)) {
      Completion& completion = completions[output.request_id];
      EXPECT_FALSE(completion.finish_reason) << "output after the last one of request " << output.request_id;
      if (output.token) completion.tokens.push_back(*output.token);
      completion.finish_reason = output.finish_reason;
      completion.cached_tokens = std::max(completion.cached_tokens, output.cached_tokens);
      if (output.details) {
        if (output.details->logprobs) take_logprobs(*output.details->logprobs, completion.logprobs);
        for (const TokenLogprobs& each : output.details->prompt_logprobs)
          take_logprobs(each, completion.prompt_logprobs);
        EXPECT_EQ(output.details->error, "");
      }
      if (output.finish_reason) ++num_ended;
    }
  }
  EXPECT_EQ(num_ended, requests.size());
  return completions;
}

inline void expect_equal(const Completion& got, const Completion& want, uint64_t id) {
  EXPECT_EQ(got.tokens, want.tokens) << "request " << id;
  EXPECT_EQ(got.logprobs, want.logprobs) << "request " << id;
  EXPECT_EQ(got.prompt_logprobs, want.prompt_logprobs) << "request " << id;
  EXPECT_EQ(got.finish_reason, want.finish_reason) << "request " << id;
}

/// Prompts of 1 to 60 tokens, a third of them with 40 others in front that they share; greedy, sampled and penalised;
/// some with prompt log-probabilities. `images`: in some of the prompts, of up to 5 tokens; of the shared beginning
/// some have the same ones, others are text.
inline std::vector<Request> requests_of_all_kinds(int count, int64_t max_tokens, bool images = false) {
  const std::vector<int32_t> shared = random_tokens(40, 99);
  std::vector<Request> requests;
  for (int i = 0; i < count; ++i) {
    Request request{.id = static_cast<uint64_t>(i), .prompt = random_tokens(static_cast<size_t>(1 + i * 17 % 60), 7)};
    if (i % 3 == 0) request.prompt.insert(request.prompt.begin(), shared.begin(), shared.end());
    request.params.sampling.seed = static_cast<uint64_t>(i);
    if (i % 2 == 1) request.params.sampling.temperature = 1.0;
    if (i % 4 == 1) request.params.sampling.top_p = 0.9;
    if (i % 5 == 1) request.params.sampling.repetition_penalty = 1.3;
    if (i % 5 == 2) request.params.sampling.frequency_penalty = 0.5;
    request.params.max_tokens = max_tokens;
    request.params.ignore_eos = i % 7 != 0;
    request.params.logprobs = 3;
    if (i % 8 == 0) request.params.prompt_logprobs = 3;
    const bool with_images = images && i % 4 >= 2;
    for (int64_t first = 2; with_images && first + 5 <= std::ssize(request.prompt); first += 6 + i % 3) {
      request.spans.push_back({.first = first, .last = first + 2 + first % 4});
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

}  // namespace quaver::testing
