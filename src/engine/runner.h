// What executes steps: the border between the scheduler, which knows no device, and a backend, which knows no queue.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kv_cache/manager.h"
#include "model/batch.h"
#include "quaver/engine.h"

namespace quaver {

/// One step as data. Rows name a request by its slot, 0 … max_num_seqs-1, which it keeps from admission to its end (or
/// preemption); a backend keeps what sampling needs per slot, so nothing of the past is sent again.
struct Step {
  /// token_ids holds -1 where `feedback` supplies the token.
  Batch batch;
  std::vector<int32_t> row_slots;  ///< [B]: whose row of the batch it is
  /// Copies of shared pages, before anything is written.
  std::vector<PageCopy> page_copies;

  /// A slot that has a new owner from this step on.
  struct SlotStart {
    int32_t slot = 0;
    RequestParams params;
    std::vector<int32_t> stop_token_ids;  ///< ids that min_tokens forbids: stop ids and, unless ignored, eos ids
    std::vector<int32_t> tokens;          ///< prompt, then what was generated before a preemption
    int64_t prompt_len = 0;
  };
  std::vector<SlotStart> starts;

  /// batch.token_ids[row] is the token that the slot drew last, in this step's predecessor.
  struct Feedback {
    int32_t row = 0;
    int32_t slot = 0;
  };
  std::vector<Feedback> feedback;

  /// Draw a token for `slot` from the logits of batch.logit_rows[logit_row].
  struct Sample {
    int32_t logit_row = 0;
    int32_t slot = 0;
  };
  std::vector<Sample> samples;

  /// Report the probability of the prompt token `target` after batch.logit_rows[logit_row].
  struct PromptLogprob {
    int32_t logit_row = 0;
    int32_t slot = 0;
    int32_t target = 0;
  };
  std::vector<PromptLogprob> prompt_logprobs;
};

struct StepResult {
  std::vector<int32_t> tokens;                         ///< one per Step::samples
  std::vector<std::optional<TokenLogprobs>> logprobs;  ///< likewise; empty where the request wants none
  std::vector<TokenLogprobs> prompt_logprobs;          ///< one per Step::prompt_logprobs

  /// A request that cannot go on while all others can: its logits are not finite. Its entries above mean nothing.
  struct Failure {
    int32_t slot = 0;
    std::string reason;
  };
  std::vector<Failure> failures;
};

/// Runs steps strictly in order. At most kMaxInFlight are launched and not yet waited for.
class Runner {
 public:
  static constexpr int kMaxInFlight = 2;

  Runner() = default;
  virtual ~Runner() = default;
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;
  Runner(Runner&&) = delete;
  Runner& operator=(Runner&&) = delete;

  /// Starts a step and returns; `step` stays unchanged and alive until its wait() returns.
  virtual void launch(const Step& step) = 0;
  /// The result of the oldest launched step. Throws when it failed. Error(kOutOfMemory, kInvalidArgument, …) and
  /// std::bad_alloc: the next step may run; the step launched behind the failed one is waited for, but what comes of it
  /// is ignored, unless it is kCuda. kCuda, kInternal and any other exception: the runner cannot go on.
  [[nodiscard]] virtual StepResult wait() = 0;

  [[nodiscard]] virtual const CachePlan& cache_plan() const noexcept = 0;
  [[nodiscard]] virtual int64_t num_pages() const noexcept = 0;
  [[nodiscard]] virtual int64_t vocab_size() const noexcept = 0;
  [[nodiscard]] virtual int64_t max_positions() const noexcept = 0;
  /// Does it read Batch::span_ids?
  [[nodiscard]] virtual bool takes_spans() const noexcept { return false; }
  /// Fewest tokens of a longer prompt that a step brings. A prompt shorter than that comes whole.
  [[nodiscard]] virtual int64_t least_chunk() const noexcept { return 1; }
};

}  // namespace quaver
