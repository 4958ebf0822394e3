// One step under construction, and what its result is for.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/live_request.h"
#include "engine/runner.h"
#include "model/batch_builder.h"

namespace quaver {

class ScheduledStep {
 public:
  struct Row {
    RequestPtr request;
    int32_t slot = 0;
    bool samples = false;  ///< one of Step::samples, in order
    bool last = false;     ///< nothing of the request runs after this
    int32_t num_prompt_logprobs = 0;
  };

  /// Starts over; memory is kept.
  void clear();
  /// `request` takes over its slot.
  void start_slot(const LiveRequest& request);
  void copy_pages(const std::vector<PageCopy>& copies);
  /// The last `count` of the tokens that `request` has pages for run in this step. Decides what is asked of the
  /// logits, and notes it in the request.
  void add_row(RequestPtr request, int64_t count);
  /// After the last row: makes the batch.
  void build(const KvManager& manager);
  /// Its result is for nobody. The step itself may be in flight and stays.
  void drop_rows() { rows_.clear(); }

  [[nodiscard]] const Step& step() const noexcept { return step_; }
  [[nodiscard]] const std::vector<Row>& rows() const noexcept { return rows_; }

 private:
  Step step_;
  std::vector<Row> rows_;
  BatchBuilder builder_;
  std::vector<SequenceStep> parts_;      // by row
  std::vector<int32_t> logit_rows_;      // of all rows, relative to each
  std::vector<size_t> first_logit_row_;  // by row, in logit_rows_
  int32_t num_tokens_ = 0;
};

}  // namespace quaver
