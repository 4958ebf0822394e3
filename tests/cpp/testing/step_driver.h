// Requests stepped by hand over any runner: what the engine does, without its queue.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "engine/runner.h"
#include "kv_cache/manager.h"
#include "model/batch_builder.h"

namespace quaver::testing {

class StepDriver {
 public:
  explicit StepDriver(std::unique_ptr<Runner> runner)
      : runner_(std::move(runner)), manager_(runner_->cache_plan(), runner_->num_pages(), false) {}

  struct Sequence {
    int32_t slot = 0;
    SequencePages pages{};
    std::vector<TokenSpan> spans{};  ///< of the prompt
  };

  /// Adds the next tokens of a sequence to `step`; token -1 is fed back. Draws after the last one.
  void add(Step& step, Sequence& sequence, const std::vector<int32_t>& tokens, bool sample = true) {
    const auto count = static_cast<int64_t>(tokens.size());
    for (const PageCopy& copy : manager_.append(sequence.pages, count)) step.page_copies.push_back(copy);
    if (tokens.back() < 0) step.feedback.push_back({.row = num_tokens_, .slot = sequence.slot});
    num_tokens_ += static_cast<int32_t>(count);
    if (sample) {
      step.samples.push_back({.logit_row = num_rows_++, .slot = sequence.slot});
      rows_.push_back({static_cast<int32_t>(count) - 1});
    } else {
      rows_.emplace_back();
    }
    tokens_.push_back(tokens);
    sequences_.push_back(&sequence);
  }
  static void start(Step& step, const Sequence& sequence, const RequestParams& params, std::vector<int32_t> tokens) {
    Step::SlotStart start;
    start.slot = sequence.slot;
    start.params = params;
    start.prompt_len = std::ssize(tokens);
    start.tokens = std::move(tokens);
    step.starts.push_back(start);
  }
  /// Builds the batch of what was added.
  void finish(Step& step) {
    BatchBuilder builder;
    builder.begin(manager_, step.batch);
    for (size_t i = 0; i < sequences_.size(); ++i) {
      builder.add(
          manager_,
          {.pages = sequences_[i]->pages, .tokens = tokens_[i], .logit_rows = rows_[i], .spans = sequences_[i]->spans},
          step.batch);
    }
    num_tokens_ = num_rows_ = 0;
    tokens_.clear();
    rows_.clear();
    sequences_.clear();
  }
  StepResult run(Step& step) {
    finish(step);
    runner_->launch(step);
    return runner_->wait();
  }
  /// Log-probabilities of prompt tokens 1, 2, …, with the `top` best, from a prefill in chunks.
  std::vector<TokenLogprobs> prompt_logprobs(Sequence& sequence, const std::vector<int32_t>& prompt, size_t chunk,
                                             int top) {
    std::vector<TokenLogprobs> seen;
    for (size_t begin = 0; begin < prompt.size(); begin += chunk) {
      const size_t end = std::min(prompt.size(), begin + chunk);
      Step step;
      if (begin == 0) start(step, sequence, {.prompt_logprobs = top}, prompt);
      add(step, sequence, {prompt.begin() + static_cast<int64_t>(begin), prompt.begin() + static_cast<int64_t>(end)},
          false);
      finish(step);
      for (size_t i = begin; i < end && i + 1 < prompt.size(); ++i) {
        const auto row = static_cast<int32_t>(i - begin);
        step.batch.logit_rows.push_back(row);
        step.prompt_logprobs.push_back({.logit_row = row, .slot = sequence.slot, .target = prompt[i + 1]});
      }
      runner_->launch(step);
      const StepResult result = runner_->wait();
      EXPECT_TRUE(result.failures.empty());
      seen.insert(seen.end(), result.prompt_logprobs.begin(), result.prompt_logprobs.end());
    }
    return seen;
  }
  KvManager& manager() { return manager_; }
  Runner& runner() { return *runner_; }

 private:
  std::unique_ptr<Runner> runner_;
  KvManager manager_;
  int32_t num_tokens_ = 0;
  int32_t num_rows_ = 0;
  std::vector<std::vector<int32_t>> tokens_;
  std::vector<std::vector<int32_t>> rows_;
  std::vector<Sequence*> sequences_;
};

}  // namespace quaver::testing
