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
  const SequencePages& pages;             ///< after KvManager::append() made room for `tokens`
  std::span<const int32_t> tokens{};      ///< the last tokens of the sequence, at least one
  std::span<const int32_t> logit_rows{};  ///< indices into `tokens`, ascending
  std::span<const TokenSpan> spans{};     ///< image spans of the whole sequence; `tokens` cuts none of them
};

/// Sequences that compute one token each, as arrays over them.
struct OneTokenRows {
  std::span<const int64_t> num_tokens{};          ///< SequencePages::num_tokens, this token included
  std::span<const int32_t> tokens{};              ///< the token, or -1
  std::span<const uint64_t> versions{};           ///< SequencePages::version
  std::span<const SequencePages* const> pages{};  ///< read only where the version is not the one seen last
};

/// One builder serves one batch: `batch` is the same in every call.
class BatchBuilder {
 public:
  /// Starts a step with these rows. Which of them want logits is the caller's to note.
  void begin(const KvManager& manager, const OneTokenRows& rows, Batch& batch);
  /// Starts a step without sequences.
  void begin(const KvManager& manager, Batch& batch) { begin(manager, {}, batch); }
  /// Adds a sequence as the next row. It costs least where it was in the batch before. Throws Error(kInvalidArgument)
  /// for a step without tokens, a logit row outside them or a span that they cut.
  void add(const KvManager& manager, const SequenceStep& step, Batch& batch);

 private:
  /// A row in one group: entries outside [first, end) are -1.
  struct Part {
    int64_t first = 0;
    int64_t end = 0;
  };

  static void add_spans(std::span<const TokenSpan> spans, int64_t first, int64_t last, Batch& batch);
  void add_row(Batch& batch);
  void update_row(const KvManager& manager, const SequencePages& pages, size_t row, Batch& batch);
  void widen(size_t group_index, int64_t num_pages, Batch::Group& group) const;

  size_t num_groups_ = 0;
  std::vector<uint64_t> versions_;                  // [row]: what it shows
  std::vector<uint64_t> serials_;                   // [row]: of its sequence
  std::vector<Part> parts_;                         // [row][group]
  std::vector<std::vector<int64_t>> slot_offsets_;  // [group][row]: slot of a token on the last page - its position
};

}  // namespace quaver
