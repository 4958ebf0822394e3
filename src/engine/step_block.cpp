#include "engine/step_block.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace quaver {
namespace {

constexpr int64_t kAlignment = 16;

/// Places arrays one behind the other.
class Allocator {
 public:
  int64_t take(int64_t count, int64_t element_bytes) {
    const int64_t offset = end_;
    end_ += (count * element_bytes + kAlignment - 1) / kAlignment * kAlignment;
    return offset;
  }
  [[nodiscard]] int64_t end() const { return end_; }

 private:
  int64_t end_ = 0;
};

/// Entries of a block table that a sequence's new tokens see: those of a sliding group begin at its window.
struct Columns {
  int64_t first = 0;
  int64_t end = 0;
};

Columns visible_columns(const CacheGroup& group, int64_t seq_len, int64_t query_len) {
  const int64_t page = group.layout.page_size;
  const int64_t first_key = group.window > 0 ? std::max<int64_t>(0, seq_len - query_len - group.window + 1) : 0;
  return {.first = first_key / page, .end = (seq_len + page - 1) / page};
}

Columns visible_columns(const Batch& batch, const CacheGroup& group, size_t sequence) {
  return visible_columns(group, batch.seq_lens[sequence],
                         batch.query_start[sequence + 1] - batch.query_start[sequence]);
}

void check_step(bool ok, const char* what) {
  check_as(ErrorKind::kInternal, ok, "step with ", what, ": expected a batch that agrees with its lists");
}

/// The arrays of a block as they are being written.
class Block {
 public:
  explicit Block(std::span<std::byte> bytes) : bytes_(bytes) {}
  template <class T>
  [[nodiscard]] std::span<T> array(int64_t offset, int64_t count) const {
    check_step(offset + count * static_cast<int64_t>(sizeof(T)) <= std::ssize(bytes_), "more arrays than its block");
    return {reinterpret_cast<T*>(bytes_.data() + offset), static_cast<size_t>(count)};
  }
  /// `values`, then `padding`.
  template <class T>
  void fill(int64_t offset, int64_t count, std::span<const T> values, T padding) const {
    const std::span<T> out = array<T>(offset, count);
    check_step(values.size() <= out.size(), "more rows than its shape");
    std::fill(std::copy(values.begin(), values.end(), out.begin()), out.end(), padding);
  }

 private:
  std::span<std::byte> bytes_;
};

/// values[row] = the entry's value; at most one entry a row.
void place(std::span<int32_t> values, int32_t row, int32_t value, const char* what) {
  check_step(row >= 0 && std::cmp_less(row, values.size()) && values[static_cast<size_t>(row)] < 0, what);
  values[static_cast<size_t>(row)] = value;
}

/// Sequence of every logit row, both rising; shorter where a row is not the last of a sequence.
std::vector<int32_t> sequences_of_last_tokens(const Batch& batch) {
  std::vector<int32_t> sequences;
  size_t b = 0;
  for (const int32_t row : batch.logit_rows) {
    while (b < batch.seq_lens.size() && batch.query_start[b + 1] <= row) ++b;
    if (b == batch.seq_lens.size() || batch.query_start[b + 1] != row + 1) break;
    sequences.push_back(static_cast<int32_t>(b++));
  }
  return sequences;
}

void write_table(const Batch& batch, size_t group_index, const CacheGroup& group, int64_t columns,
                 std::span<int32_t> first_columns, std::span<int32_t> table) {
  const Batch::Group& source = batch.groups[group_index];
  std::ranges::fill(table, -1);
  std::ranges::fill(first_columns, 0);
  for (size_t b = 0; b < batch.seq_lens.size(); ++b) {
    const Columns visible = visible_columns(batch, group, b);
    check_step(visible.end <= source.max_pages && visible.end - visible.first <= columns, "too short a block table");
    first_columns[b] = static_cast<int32_t>(visible.first);
    const auto row = source.block_table.begin() + static_cast<int64_t>(b) * source.max_pages;
    std::copy(row + visible.first, row + visible.end, table.begin() + static_cast<int64_t>(b) * columns);
  }
}

}  // namespace

StepLayout step_layout(const StepShape& shape) {
  Allocator memory;
  const auto ints = [&](int64_t count) { return memory.take(count, sizeof(int32_t)); };
  StepLayout layout{.token_ids = ints(shape.num_tokens),
                    .positions = ints(shape.num_tokens),
                    .feedback_slots = ints(shape.num_tokens),
                    .query_start = ints(shape.num_sequences + 1),
                    .seq_lens = ints(shape.num_sequences),
                    .logit_rows = ints(shape.num_logit_rows),
                    .sample_slots = ints(shape.num_logit_rows),
                    .target_slots = ints(shape.num_logit_rows),
                    .targets = ints(shape.num_logit_rows),
                    .groups = std::vector<StepLayout::Group>(shape.table_columns.size())};
  for (StepLayout::Group& group : layout.groups) {
    group.slots = memory.take(shape.num_tokens, sizeof(int64_t));
    group.first_columns = ints(shape.num_sequences);
  }
  size_t index = 0;
  for (StepLayout::Group& group : layout.groups) {
    group.table = ints(shape.num_sequences * shape.table_columns[index++]);
  }
  if (shape.spans) layout.span_ids = ints(shape.num_tokens);
  layout.bytes = memory.end();
  return layout;
}

bool wants_last_tokens_only(const Batch& batch) {
  if (batch.num_tokens() <= batch.num_sequences()) return false;
  for (size_t b = 0; b < batch.seq_lens.size(); ++b) {
    if (batch.query_start[b] == batch.query_start[b + 1]) return false;  // no last token
  }
  return sequences_of_last_tokens(batch).size() == batch.logit_rows.size();
}

bool is_decode_step(const Step& step) {
  return step.batch.num_tokens() == step.batch.num_sequences() && step.starts.empty() && step.prompt_logprobs.empty();
}

StepShape step_shape(const Step& step, const CachePlan& plan, int64_t padded_sequences) {
  const Batch& batch = step.batch;
  check_step(batch.groups.size() == plan.groups.size(), "other cache groups than the plan's");
  check_step(batch.query_start.size() == batch.seq_lens.size() + 1, "sequences without a query_start");
  StepShape shape{.num_tokens = batch.num_tokens(),
                  .num_sequences = batch.num_sequences(),
                  .num_logit_rows = std::ssize(batch.logit_rows),
                  .last_tokens_only = wants_last_tokens_only(batch),
                  .spans = !batch.span_ids.empty(),
                  .table_columns = {}};
  if (padded_sequences > 0) {
    check_step(is_decode_step(step) && batch.num_sequences() <= padded_sequences, "more rows than its graph");
    shape.num_tokens = shape.num_sequences = shape.num_logit_rows = padded_sequences;
    shape.spans = false;  // one token each: none sees another
  }
  for (const CacheGroup& group : plan.groups) {
    int64_t most = 0;
    for (size_t b = 0; b < batch.seq_lens.size(); ++b) {
      const Columns visible = visible_columns(batch, group, b);
      most = std::max(most, visible.end - visible.first);
    }
    shape.table_columns.push_back(most);
  }
  return shape;
}

void write_step(const Step& step, const CachePlan& plan, const StepShape& shape, const StepLayout& layout,
                std::span<std::byte> bytes) {
  const Batch& batch = step.batch;
  const Block block(bytes);
  const int64_t tokens = shape.num_tokens;
  const int64_t sequences = shape.num_sequences;
  const int64_t rows = shape.num_logit_rows;
  block.fill<int32_t>(layout.token_ids, tokens, batch.token_ids, 0);
  block.fill<int32_t>(layout.positions, tokens, batch.positions, 0);
  block.fill<int32_t>(layout.feedback_slots, tokens, {}, -1);
  const std::span<int32_t> feedback = block.array<int32_t>(layout.feedback_slots, batch.num_tokens());
  for (const Step::Feedback& entry : step.feedback) place(feedback, entry.row, entry.slot, "feedback");

  block.fill<int32_t>(layout.query_start, sequences + 1, batch.query_start, 0);
  const std::span<int32_t> starts = block.array<int32_t>(layout.query_start, sequences + 1);
  for (size_t b = batch.query_start.size(); b < starts.size(); ++b) starts[b] = starts[b - 1] + 1;
  block.fill<int32_t>(layout.seq_lens, sequences, batch.seq_lens, 0);

  if (shape.last_tokens_only) {
    block.fill<int32_t>(layout.logit_rows, rows, sequences_of_last_tokens(batch), 0);
  } else {
    block.fill<int32_t>(layout.logit_rows, rows, batch.logit_rows, 0);
  }
  block.fill<int32_t>(layout.sample_slots, rows, {}, -1);
  block.fill<int32_t>(layout.target_slots, rows, {}, -1);
  block.fill<int32_t>(layout.targets, rows, {}, -1);
  const int64_t real_rows = std::ssize(batch.logit_rows);
  const std::span<int32_t> sample_slots = block.array<int32_t>(layout.sample_slots, real_rows);
  for (const Step::Sample& sample : step.samples) place(sample_slots, sample.logit_row, sample.slot, "samples");
  const std::span<int32_t> target_slots = block.array<int32_t>(layout.target_slots, real_rows);
  const std::span<int32_t> targets = block.array<int32_t>(layout.targets, real_rows);
  for (const Step::PromptLogprob& wanted : step.prompt_logprobs) {
    place(target_slots, wanted.logit_row, wanted.slot, "prompt_logprobs");
    place(targets, wanted.logit_row, wanted.target, "prompt_logprobs");
  }

  if (shape.spans) {
    check_step(std::cmp_equal(batch.span_ids.size(), tokens), "span ids of some tokens");
    block.fill<int32_t>(layout.span_ids, tokens, batch.span_ids, -1);
  }

  for (size_t g = 0; g < layout.groups.size(); ++g) {
    const StepLayout::Group& group = layout.groups[g];
    block.fill<int64_t>(group.slots, tokens, batch.groups[g].slots, -1);
    write_table(batch, g, plan.groups[g], shape.table_columns[g], block.array<int32_t>(group.first_columns, sequences),
                block.array<int32_t>(group.table, sequences * shape.table_columns[g]));
  }
}

std::vector<int64_t> decode_graph_sizes(int64_t max_num_seqs) {
  std::vector<int64_t> sizes;
  for (int64_t size = 1; size < max_num_seqs; size = size < 8 ? 2 * size : size + 8) sizes.push_back(size);
  sizes.push_back(max_num_seqs);
  return sizes;
}

int64_t padded_size(std::span<const int64_t> sizes, int64_t num_sequences) {
  const auto size = std::ranges::lower_bound(sizes, num_sequences);
  return size == sizes.end() ? 0 : *size;
}

}  // namespace quaver
