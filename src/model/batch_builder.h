// Fills a Batch step after step. Block tables stay where they are: a row that keeps its sequence gets only the page ids
// that are new and -1 for those released, so the host time of a decode step does not depend on the context length.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv_cache/manager.h"
#include "model/batch.h"

namespace quaver {

/// One sequence's share of a step.
struct SequenceStep {
  const SequencePages* pages = nullptr;   ///< after KvManager::append() made room for `tokens`
  std::span<const int32_t> tokens{};      ///< the last tokens of the sequence, at least one
  std::span<const int32_t> logit_rows{};  ///< indices into `tokens`, ascending
};

class BatchBuilder {
 public:
  /// Makes `batch`, the same one in every call, say `steps` in their order. A sequence costs least where it was in the
  /// batch before. Throws Error(kInvalidArgument) for a step without tokens or a logit row outside them.
  void build(const KvManager& manager, std::span<const SequenceStep> steps, Batch& batch);

 private:
  /// What a row of the tables holds.
  struct Row {
    uint64_t serial = 0;  // of the sequence
    uint64_t version = 0;
  };
  /// A row in one group.
  struct Part {
    int64_t first = 0;  // entries outside [first, end) are -1
    int64_t end = 0;
    int64_t slot_of_token_0 = 0;  // if the last page went on to the left: slot of token t on it = this + t
  };

  void fill_tokens(std::span<const SequenceStep> steps, Batch& batch);
  void make_room(std::span<const SequenceStep> steps, size_t group_index, Batch::Group& group);
  void update_row(const KvManager& manager, const SequencePages& pages, size_t row, Batch& batch);
  void fill_slots(const KvManager& manager, std::span<const SequenceStep> steps, Batch& batch) const;
  [[nodiscard]] Part& part(size_t row, size_t group) { return parts_[row * num_groups_ + group]; }

  size_t num_groups_ = 0;
  std::vector<Row> rows_;
  std::vector<Part> parts_;  // [row][group]
};

}  // namespace quaver
