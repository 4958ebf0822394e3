#include "model/batch.h"

#include <algorithm>

#include "core/check.h"

namespace quaver {
namespace {

/// Slots and the block table of one cache group, for all sequences.
void fill_group(const KvManager& manager, std::span<const SequenceStep> steps, size_t group_index, int64_t num_tokens,
                Batch::Group& group) {
  size_t max_pages = 0;
  for (const SequenceStep& step : steps) max_pages = std::max(max_pages, step.pages->tables[group_index].size());
  group.max_pages = static_cast<int32_t>(max_pages);
  group.block_table.assign(steps.size() * max_pages, -1);
  group.slots.resize(static_cast<size_t>(num_tokens));
  int64_t* slots = group.slots.data();
  for (size_t b = 0; b < steps.size(); ++b) {
    const SequencePages& pages = *steps[b].pages;
    const std::vector<int32_t>& table = pages.tables[group_index];
    std::copy(table.begin(), table.end(), group.block_table.begin() + static_cast<int64_t>(b * max_pages));
    const auto count = static_cast<int64_t>(steps[b].tokens.size());
    manager.slots(pages, static_cast<int>(group_index), pages.num_tokens - count, count, slots);
    slots += count;
  }
}

}  // namespace

void build_batch(const KvManager& manager, std::span<const SequenceStep> steps, Batch& batch) {
  batch.token_ids.clear();
  batch.positions.clear();
  batch.query_start.assign(1, 0);
  batch.seq_lens.clear();
  batch.logit_rows.clear();
  for (const SequenceStep& step : steps) {
    const auto count = static_cast<int64_t>(step.tokens.size());
    const int64_t length = step.pages->num_tokens;
    check(count > 0 && count <= length, "tokens of a step ", count, ": expected 1 to the sequence's ", length);
    const auto first_row = static_cast<int32_t>(batch.token_ids.size());
    for (const int32_t row : step.logit_rows) {
      check(row >= 0 && row < count, "logit row ", row, ": expected 0 to ", count - 1);
      batch.logit_rows.push_back(first_row + row);
    }
    batch.token_ids.insert(batch.token_ids.end(), step.tokens.begin(), step.tokens.end());
    for (int64_t position = length - count; position < length; ++position) {
      batch.positions.push_back(static_cast<int32_t>(position));
    }
    batch.query_start.push_back(static_cast<int32_t>(batch.token_ids.size()));
    batch.seq_lens.push_back(static_cast<int32_t>(length));
  }
  batch.groups.resize(manager.plan().groups.size());
  for (size_t g = 0; g < batch.groups.size(); ++g) {
    fill_group(manager, steps, g, batch.num_tokens(), batch.groups[g]);
  }
}

}  // namespace quaver
