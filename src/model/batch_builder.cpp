#include "model/batch_builder.h"

#include <algorithm>

#include "core/check.h"

namespace quaver {

void BatchBuilder::build(const KvManager& manager, std::span<const SequenceStep> steps, Batch& batch) {
  fill_tokens(steps, batch);
  num_groups_ = manager.plan().groups.size();
  batch.groups.resize(num_groups_);
  if (rows_.size() < steps.size()) {
    rows_.resize(steps.size());
    parts_.resize(steps.size() * num_groups_);
  }
  for (size_t g = 0; g < num_groups_; ++g) make_room(steps, g, batch.groups[g]);
  for (size_t row = 0; row < steps.size(); ++row) {
    const SequencePages& pages = *steps[row].pages;
    if (rows_[row].version != pages.version) update_row(manager, pages, row, batch);
  }
  fill_slots(manager, steps, batch);
}

void BatchBuilder::fill_tokens(std::span<const SequenceStep> steps, Batch& batch) {
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
}

/// Rows for all steps, as wide as the longest sequence; doubling keeps the average cost of a wider table constant.
void BatchBuilder::make_room(std::span<const SequenceStep> steps, size_t group_index, Batch::Group& group) {
  const auto width = static_cast<size_t>(group.max_pages);
  size_t longest = width;
  for (size_t row = 0; row < steps.size(); ++row) {
    if (rows_[row].version == steps[row].pages->version) continue;
    longest = std::max(longest, steps[row].pages->tables[group_index].size());
  }
  if (longest > width) {
    const size_t wider = std::max(longest, 2 * width);
    group.max_pages = static_cast<int32_t>(wider);
    group.block_table.assign(rows_.size() * wider, -1);
    for (size_t row = 0; row < rows_.size(); ++row) {
      rows_[row].version = 0;
      part(row, group_index) = {};
    }
  } else if (group.block_table.size() < rows_.size() * width) {
    group.block_table.resize(rows_.size() * width, -1);
  }
}

void BatchBuilder::update_row(const KvManager& manager, const SequencePages& pages, size_t row, Batch& batch) {
  const bool same_sequence = rows_[row].serial == pages.serial;
  rows_[row] = {.serial = pages.serial, .version = pages.version};
  for (size_t g = 0; g < num_groups_; ++g) {
    Batch::Group& group = batch.groups[g];
    const auto row_start = group.block_table.begin() + static_cast<int64_t>(row) * group.max_pages;
    const std::vector<int32_t>& table = pages.tables[g];
    Part& known = part(row, g);
    if (!same_sequence) {
      std::fill(row_start + known.first, row_start + known.end, -1);
      known = {};
    }
    const int64_t released = pages.num_released[g];
    const int64_t size = std::ssize(table);
    if (known.first < released) std::fill(row_start + known.first, row_start + std::min(released, known.end), -1);
    // The last known entry is written again: copy-on-write may have replaced it.
    const int64_t from = std::max(released, known.end - 1);
    std::copy(table.begin() + from, table.end(), row_start + from);
    known.first = released;
    known.end = size;
    const int64_t page_size = manager.plan().groups[g].layout.page_size;
    known.slot_of_token_0 = (table.back() - (size - 1)) * page_size;
  }
}

void BatchBuilder::fill_slots(const KvManager& manager, std::span<const SequenceStep> steps, Batch& batch) const {
  for (Batch::Group& group : batch.groups) group.slots.resize(batch.token_ids.size());
  for (size_t row = 0; row < steps.size(); ++row) {
    const auto first = static_cast<size_t>(batch.query_start[row]);
    const auto count = static_cast<int64_t>(steps[row].tokens.size());
    const SequencePages& pages = *steps[row].pages;
    for (size_t g = 0; g < num_groups_; ++g) {
      int64_t* const slots = batch.groups[g].slots.data() + first;
      if (count == 1) {
        *slots = parts_[row * num_groups_ + g].slot_of_token_0 + pages.num_tokens - 1;
      } else {
        manager.slots(pages, static_cast<int>(g), pages.num_tokens - count, count, slots);
      }
    }
  }
}

}  // namespace quaver
