#include "model/batch_builder.h"

#include <algorithm>

#include "core/check.h"

namespace quaver {

void BatchBuilder::begin(const KvManager& manager, const OneTokenRows& rows, Batch& batch) {
  const size_t count = rows.num_tokens.size();
  num_groups_ = manager.plan().groups.size();
  batch.groups.resize(num_groups_);
  batch.span_ids.clear();
  batch.logit_rows.clear();
  slot_offsets_.resize(num_groups_);
  while (versions_.size() < count) add_row(batch);
  for (size_t row = 0; row < count; ++row) {
    if (versions_[row] != rows.versions[row]) update_row(manager, *rows.pages[row], row, batch);
  }
  // No clear(): what resize() adds it fills with zeros first.
  batch.token_ids.assign(rows.tokens.begin(), rows.tokens.end());
  batch.positions.resize(count);
  batch.seq_lens.resize(count);
  batch.query_start.resize(count + 1);
  batch.query_start[0] = 0;
  for (size_t row = 0; row < count; ++row) {
    batch.positions[row] = static_cast<int32_t>(rows.num_tokens[row] - 1);
    batch.seq_lens[row] = static_cast<int32_t>(rows.num_tokens[row]);
    batch.query_start[row + 1] = static_cast<int32_t>(row + 1);
  }
  for (size_t g = 0; g < num_groups_; ++g) {
    std::vector<int64_t>& slots = batch.groups[g].slots;
    slots.resize(count);
    for (size_t row = 0; row < count; ++row) slots[row] = slot_offsets_[g][row] + rows.num_tokens[row] - 1;
  }
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
  if (!step.spans.empty() || !batch.span_ids.empty()) add_spans(step.spans, length - count, length, batch);
  const size_t row = batch.seq_lens.size();
  batch.seq_lens.push_back(static_cast<int32_t>(length));
  batch.query_start.push_back(static_cast<int32_t>(batch.token_ids.size()));

  if (row == versions_.size()) add_row(batch);
  if (versions_[row] != step.pages.version) update_row(manager, step.pages, row, batch);
  for (size_t g = 0; g < num_groups_; ++g) {
    std::vector<int64_t>& slots = batch.groups[g].slots;
    if (count == 1) {
      slots.push_back(slot_offsets_[g][row] + length - 1);
    } else {
      slots.resize(batch.token_ids.size());
      manager.slots(step.pages, static_cast<int>(g), length - count, count, slots.data() + first_token);
    }
  }
}

/// The ids of the last tokens of the batch, positions [first, last) of their sequence.
void BatchBuilder::add_spans(std::span<const TokenSpan> spans, int64_t first, int64_t last, Batch& batch) {
  const bool any =
      std::ranges::any_of(spans, [&](const TokenSpan& span) { return span.first < last && span.last > first; });
  if (!any && batch.span_ids.empty()) return;
  batch.span_ids.resize(batch.token_ids.size(), -1);
  const auto ids = batch.span_ids.end() - (last - first);
  for (size_t i = 0; i < spans.size(); ++i) {
    const auto& [begin, end] = spans[i];
    if (end <= first || begin >= last) continue;
    check(begin >= first && end <= last, "span [", begin, ", ", end, ") in a step of tokens ", first, " to ", last - 1,
          ": expected a step that holds all of it");
    std::fill(ids + (begin - first), ids + (end - first), static_cast<int32_t>(i));
  }
}

void BatchBuilder::add_row(Batch& batch) {
  versions_.push_back(0);
  serials_.push_back(0);
  parts_.resize(versions_.size() * num_groups_);
  for (std::vector<int64_t>& offsets : slot_offsets_) offsets.push_back(0);
  for (Batch::Group& group : batch.groups) {
    group.block_table.resize(versions_.size() * static_cast<size_t>(group.max_pages), -1);
  }
}

void BatchBuilder::update_row(const KvManager& manager, const SequencePages& pages, size_t row, Batch& batch) {
  const bool same_sequence = serials_[row] == pages.serial;
  versions_[row] = pages.version;
  serials_[row] = pages.serial;
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
    slot_offsets_[g][row] = (table.back() - (size - 1)) * page_size;
  }
}

/// At least twice as wide, so that the average cost of an entry stays constant.
void BatchBuilder::widen(size_t group_index, int64_t num_pages, Batch::Group& group) const {
  const int64_t width = std::max(num_pages, int64_t{2} * group.max_pages);
  std::vector<int32_t> wider(versions_.size() * static_cast<size_t>(width), -1);
  for (size_t row = 0; row < versions_.size(); ++row) {
    const Part& known = parts_[row * num_groups_ + group_index];
    const auto from = group.block_table.begin() + static_cast<int64_t>(row) * group.max_pages;
    std::copy(from + known.first, from + known.end, wider.begin() + static_cast<int64_t>(row) * width + known.first);
  }
  group.block_table = std::move(wider);
  group.max_pages = static_cast<int32_t>(width);
}

}  // namespace quaver
