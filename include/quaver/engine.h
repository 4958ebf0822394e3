// The serving engine: requests in, tokens out, continuous batching in between. One engine drives one device from a
// thread of its own; every function here may be called from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quaver/sampling.h"
#include "quaver/token_span.h"

namespace quaver {

enum class FinishReason : uint8_t {
  kStop,    ///< an end-of-sequence or stop id was drawn
  kLength,  ///< max_tokens reached
  kAbort,   ///< the caller ended it
  kError,   ///< a step failed; Output::error says why
};

/// "stop", "length", "abort" or "error".
[[nodiscard]] std::string_view finish_reason_name(FinishReason reason) noexcept;

struct RequestParams {
  SamplingParams sampling{};
  int64_t max_tokens = 16;  ///< 0: only the prompt is run (for its logprobs)
  int64_t min_tokens = 0;   ///< no end-of-sequence or stop id before so many tokens
  bool ignore_eos = false;  ///< the model's end-of-sequence ids are ordinary tokens
  std::vector<int32_t> stop_token_ids{};
  std::vector<std::pair<int32_t, float>> logit_bias{};  ///< added to the logits of these ids; [-100, 100]
  int logprobs = -1;         ///< most probable tokens reported beside each generated one; -1: no logprobs at all
  int prompt_logprobs = -1;  ///< the same for the prompt's tokens; such a request does not read the prefix cache
};

struct Request {
  uint64_t id = 0;  ///< the caller's; unique among live requests
  std::vector<int32_t> prompt{};
  RequestParams params{};
  /// Images in the prompt, ascending: their tokens see each other in both directions where the model has it so. Each is
  /// computed in one step, so it has at most prefill_chunk_tokens tokens.
  std::vector<TokenSpan> spans{};
  std::string cache_salt{};  ///< requests share cached prefixes only under equal salts
};

/// Natural logarithms of softmax(logits), before bias, penalties and temperature.
struct TokenLogprobs {
  int32_t token = 0;
  float logprob = 0;
  int rank = 0;  ///< 1: the most probable
  std::vector<std::pair<int32_t, float>>
      top{};  ///< best first; the token's own value is bit-equal where it is among them
};

/// What one step did for one request, in the order of steps.
struct Output {
  uint64_t request_id = 0;
  std::optional<int32_t> token{};               ///< the new token; the id that ended the text (kStop) included
  std::optional<FinishReason> finish_reason{};  ///< set in a request's last output
  int64_t cached_tokens = 0;                    ///< prompt tokens found in the prefix cache at first admission

  struct Details {
    std::optional<TokenLogprobs> logprobs{};
    std::vector<TokenLogprobs> prompt_logprobs{};  ///< of prompt tokens 1, 2, …, as chunks are done (token 0 has none)
    std::string error{};                           ///< with kError
  };
  std::unique_ptr<Details> details{};  ///< null where none of them is there: a step has an output for each request
};

struct EngineOptions {
  int64_t max_model_len = 0;              ///< prompt and output together; 0: the model's max_position_embeddings
  int64_t max_num_seqs = 256;             ///< requests that run at once
  int64_t max_num_batched_tokens = 2048;  ///< prompt tokens of one step; decode rows come on top
  int64_t prefill_chunk_tokens = 0;       ///< most prompt tokens of one request in a step; 0: max_num_batched_tokens
  bool prefix_caching = true;
  bool batch_invariant = false;  ///< a request's tokens do not depend on its batch-mates, preemption or the cache
};

/// A moment's counts; totals since the start have `_total` in their name.
struct EngineStats {
  int64_t num_running = 0;
  int64_t num_waiting = 0;
  int64_t num_pages = 0;
  int64_t num_free_pages = 0;  ///< those that hold a reusable prefix included
  int64_t steps_total = 0;
  int64_t prompt_tokens_total = 0;  ///< of admitted requests
  int64_t cached_tokens_total = 0;  ///< of them, found in the prefix cache
  int64_t generated_tokens_total = 0;
  int64_t preemptions_total = 0;
  int64_t failed_steps_total = 0;
};

class Runner;  // src/engine/runner.h: what executes steps, CPU or CUDA

class Engine {
 public:
  /// Starts the engine's thread. `eos_token_ids`: the model's own end-of-sequence ids.
  Engine(std::unique_ptr<Runner> runner, const EngineOptions& options, std::vector<int32_t> eos_token_ids);
  /// Aborts what is left and joins the thread.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  Engine(Engine&&) = delete;
  Engine& operator=(Engine&&) = delete;

  /// Queues a request. Throws Error(kInvalidArgument) naming the field for a request that can never run (empty prompt,
  /// ids outside the vocabulary, parameters out of range, spans that are none, prompt + max_tokens beyond max_model_len
  /// or the pool, an id that is live) and Error(kInternal) with the reason once the engine has failed.
  void add(Request request);

  /// Ends a request; its pages are free within one step and its last Output says kAbort. Unknown ids are ignored.
  void abort(uint64_t request_id);

  /// Outputs since the last call, waiting up to `timeout_s` for the first; empty: none came. One caller at a time.
  [[nodiscard]] std::vector<Output> wait(double timeout_s);

  [[nodiscard]] EngineStats stats() const;
  /// Why the engine no longer runs; empty while it does.
  [[nodiscard]] std::string failure() const;
  [[nodiscard]] int64_t max_model_len() const noexcept;
  /// The most tokens, prompt and at least one of output together, that one request may have: max_model_len, or less if
  /// the pool is too small for that.
  [[nodiscard]] int64_t max_request_tokens() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quaver
