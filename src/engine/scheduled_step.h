// One step under construction, and what its result is for.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "engine/decode_rows.h"
#include "engine/live_request.h"
#include "engine/runner.h"
#include "model/batch_builder.h"

namespace quaver {

class ScheduledStep {
 public:
  struct Row {
    LiveRequest* request = nullptr;
    int32_t num_prompt_logprobs = 0;
    bool samples = false;  ///< one of Step::samples, in order
    bool last = false;     ///< nothing of the request runs after this
  };

  /// Starts over; memory is kept.
  void begin();
  /// `request` takes over its slot.
  void start_slot(const LiveRequest& request);
  [[nodiscard]] std::vector<PageCopy>& page_copies() noexcept { return step_.page_copies; }
  /// Begins the batch with those that decode, one token each; to be called also where none does.
  void add_decode_rows(const KvManager& manager, const DecodeRows& decode);
  /// The last `count` of the tokens that a prompt has pages for run in this step. Decides what is asked of the logits,
  /// and notes it in the request.
  void add_chunk(const KvManager& manager, LiveRequest& r, int64_t count);
  /// Its result is in: lets go of requests.
  void clear();
  /// Its result is for nobody. The step itself may be in flight and stays.
  void drop_rows() { rows_.clear(); }
  /// Rows of this step and of earlier ones name a request that ended: it lives until this step is done.
  void keep(std::unique_ptr<LiveRequest> ended) { ended_.push_back(std::move(ended)); }

  [[nodiscard]] const Step& step() const noexcept { return step_; }
  [[nodiscard]] const std::vector<Row>& rows() const noexcept { return rows_; }

 private:
  Step step_;
  std::vector<Row> rows_;
  std::vector<std::unique_ptr<LiveRequest>> ended_;
  BatchBuilder builder_;
  std::vector<int32_t> logit_rows_;  // of one row, while it is added
};

}  // namespace quaver
