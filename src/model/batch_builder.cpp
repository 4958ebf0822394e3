#include "model/batch_builder.h"

#include <algorithm>

#include "core/check.h"

namespace quaver {

void BatchBuilder::begin(const KvManager& manager, Batch& batch) {
  num_groups_ = manager.plan().groups.size();
  batch.token_ids.clear();
  batch.positions.clear();
  batch.query_start.assign(1, 0);
  batch.seq_lens.clear();
  batch.logit_rows.clear();
  batch.groups.resize(num_groups_);
  for (Batch::Group& group : batch.groups) group.slots.clear();
}

void BatchBuilder::add(const KvManager& manager, const SequenceStep& step, Batch& batch) {
  const auto count = static_cast<int64_t>(step.tokens.size());
  const int64_t length = step.pages.num_tokens;
  check(count > 0 && count <= length, "tokens of a step ", count, ": expected 1 to the sequence's ", length);
  const size_t first_token = batch.token_ids.size();
  for (const int32_t row : step.logit_rows) {
    check(row >= 0 && row < count, "logit row ", row, ": expected 0 to ", count - 1);
    batch.logit_rows.push_back(static_cast<int32_t>(first_token) + row);
  }
  batch.token_ids.insert(batch.token_ids.end(), step.tokens.begin(), step.tokens.end());
  for (int64_t position = length - count; position < length; ++position) {
    batch.positions.push_back(static_cast<int32_t>(position));
  }
  const size_t row = batch.seq_lens.size();
  batch.seq_lens.push_back(static_cast<int32_t>(length));
  batch.query_start.push_back(static_cast<int32_t>(batch.token_ids.size()));

  if (row == rows_.size()) add_row(batch);
  if (rows_[row].version != step.pages.version) update_row(manager, step.pages, row, batch);
  for (size_t g = 0; g < num_groups_; ++g) {
    std::vector<int64_t>& slots = batch.groups[g].slots;
    if (count == 1) {
      slots.push_back(slot_offsets_[row * num_groups_ + g] + length - 1);
    } else {
      slots.resize(batch.token_ids.size());
      manager.slots(step.pages, static_cast<int>(g), length - count, count, slots.data() + first_token);
    }
  }
}

void BatchBuilder::add_row(Batch& batch) {
  rows_.emplace_back();
  parts_.resize(rows_.size() * num_groups_);
  slot_offsets_.resize(parts_.size());
  for (Batch::Group& group : batch.groups) {
    group.block_table.resize(rows_.size() * static_cast<size_t>(group.max_pages), -1);
  }
}

void BatchBuilder::update_row(const KvManager& manager, const SequencePages& pages, size_t row, Batch& batch) {
  const bool same_sequence = rows_[row].serial == pages.serial;
  rows_[row] = {.version = pages.version, .serial = pages.serial};
  for (size_t g = 0; g < num_groups_; ++g) {
    Batch::Group& group = batch.groups[g];
    const std::vector<int32_t>& table = pages.tables[g];
    const int64_t released = pages.num_released[g];
    const int64_t size = std::ssize(table);
    if (size > group.max_pages) widen(g, size, group);

    const auto entries = group.block_table.begin() + static_cast<int64_t>(row) * group.max_pages;
    Part& known = parts_[row * num_groups_ + g];
    if (!same_sequence) {
      std::fill(entries + known.first, entries + known.end, -1);
      known = {};
    }
    if (known.first < released) std::fill(entries + known.first, entries + std::min(released, known.end), -1);
    // The last known entry is written again: copy-on-write may have replaced it.
    const int64_t from = std::max(released, known.end - 1);
    std::copy(table.begin() + from, table.end(), entries + from);
    known = {.first = released, .end = size};
    const int64_t page_size = manager.plan().groups[g].layout.page_size;
    slot_offsets_[row * num_groups_ + g] = (table.back() - (size - 1)) * page_size;
  }
}

/// At least twice as wide, so that the average cost of an entry stays constant.
void BatchBuilder::widen(size_t group_index, int64_t num_pages, Batch::Group& group) const {
  const int64_t width = std::max(num_pages, int64_t{2} * group.max_pages);
  std::vector<int32_t> wider(rows_.size() * static_cast<size_t>(width), -1);
  for (size_t row = 0; row < rows_.size(); ++row) {
    const Part& known = parts_[row * num_groups_ + group_index];
    const auto from = group.block_table.begin() + static_cast<int64_t>(row) * group.max_pages;
    std::copy(from + known.first, from + known.end, wider.begin() + static_cast<int64_t>(row) * width + known.first);
  }
  group.block_table = std::move(wider);
  group.max_pages = static_cast<int32_t>(width);
}

}  // namespace quaver
