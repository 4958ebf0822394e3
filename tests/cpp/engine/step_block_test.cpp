#include "engine/step_block.h"

#include <algorithm>
#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "model/batch_builder.h"
#include "testing/cache_plans.h"
#include "testing/expect_error.h"

namespace quaver {
namespace {

// A full group with pages of 32 tokens and a sliding one (window 20) with pages of 16.
CachePlan two_groups() {
  return testing::plan_of({{.num_kv_heads = 1, .window = 0}, {.num_kv_heads = 2, .window = 20}});
}

// Sequences of `lengths` tokens, the last `queries` of which are new, as a scheduler would hand them over.
struct Case {
  CachePlan plan = two_groups();
  KvManager manager{plan, 4096, false};
  std::vector<SequencePages> pages;
  std::vector<int64_t> queries;
  Step step;

  void add(int64_t length, int64_t query_len, bool sample) {
    SequencePages& sequence = pages.emplace_back();
    for (int64_t done = 0; done < length - query_len; ++done) (void)manager.append(sequence, 1);
    (void)manager.append(sequence, query_len);
    queries.push_back(query_len);
    sampled.push_back(sample);
  }
  void build() {
    BatchBuilder builder;
    builder.begin(manager, step.batch);
    for (size_t b = 0; b < pages.size(); ++b) {
      std::vector<int32_t> tokens(static_cast<size_t>(queries[b]));
      for (int32_t& token : tokens) token = next_token++;
      const auto last = static_cast<int32_t>(queries[b]) - 1;
      const std::vector<int32_t> rows = sampled[b] ? std::vector<int32_t>{last} : std::vector<int32_t>{};
      builder.add(manager, {.pages = pages[b], .tokens = tokens, .logit_rows = rows}, step.batch);
    }
  }
  std::vector<bool> sampled;
  int32_t next_token = 100;
};

// What write_step() wrote; the block was poisoned before.
struct Written {
  Written(const Case& test, int64_t padded = 0)
      : shape(step_shape(test.step, test.plan, padded)),
        layout(step_layout(shape)),
        bytes(static_cast<size_t>(layout.bytes), std::byte{0xAB}) {
    write_step(test.step, test.plan, shape, layout, bytes);
  }
  template <class T = int32_t>
  [[nodiscard]] std::vector<T> read(int64_t offset, int64_t count) const {
    std::vector<T> values(static_cast<size_t>(count));
    std::memcpy(values.data(), bytes.data() + offset, values.size() * sizeof(T));
    return values;
  }
  StepShape shape;
  StepLayout layout;
  std::vector<std::byte> bytes;
};

using Ints = std::vector<int32_t>;

TEST(StepBlock, MixedStepArrivesAsItIs) {
  Case test;
  test.add(70, 1, true);    // decode
  test.add(40, 33, false);  // a chunk in the middle of a prompt
  test.add(5, 5, true);     // a whole prompt
  test.build();
  test.step.samples = {{.logit_row = 1, .slot = 4}, {.logit_row = 0, .slot = 7}};
  test.step.feedback = {{.row = 0, .slot = 7}};
  test.step.batch.span_ids = Ints(39, -1);
  std::fill_n(test.step.batch.span_ids.begin() + 4, 9, 1);
  const Written written(test);
  const Batch& batch = test.step.batch;
  ASSERT_EQ(written.shape.num_tokens, 39);
  ASSERT_TRUE(written.shape.spans);
  EXPECT_EQ(written.read(written.layout.span_ids, 39), batch.span_ids);
  EXPECT_TRUE(written.shape.last_tokens_only);
  EXPECT_EQ(written.read(written.layout.token_ids, 39), batch.token_ids);
  EXPECT_EQ(written.read(written.layout.positions, 39), batch.positions);
  EXPECT_EQ(written.read(written.layout.query_start, 4), (Ints{0, 1, 34, 39}));
  EXPECT_EQ(written.read(written.layout.seq_lens, 3), (Ints{70, 40, 5}));
  EXPECT_EQ(written.read(written.layout.logit_rows, 2), (Ints{0, 2}));  // of sequences 0 and 2 the last tokens
  EXPECT_EQ(written.read(written.layout.sample_slots, 2), (Ints{7, 4}));
  EXPECT_EQ(written.read(written.layout.target_slots, 2), (Ints{-1, -1}));
  Ints feedback(39, -1);
  feedback[0] = 7;
  EXPECT_EQ(written.read(written.layout.feedback_slots, 39), feedback);
  for (size_t g = 0; g < 2; ++g) {
    EXPECT_EQ(written.read<int64_t>(written.layout.groups[g].slots, 39), batch.groups[g].slots) << g;
  }
  // Full: pages of 32 tokens from the first one. Sliding: the 20 tokens before the new ones, pages of 16.
  const auto& tables = [&](size_t sequence, size_t group) { return test.pages[sequence].tables[group]; };
  EXPECT_EQ(written.shape.table_columns, (std::vector<int64_t>{3, 3}));
  EXPECT_EQ(written.read(written.layout.groups[0].first_columns, 3), (Ints{0, 0, 0}));
  EXPECT_EQ(written.read(written.layout.groups[0].table, 9),
            (Ints{tables(0, 0)[0], tables(0, 0)[1], tables(0, 0)[2], tables(1, 0)[0], tables(1, 0)[1], -1,
                  tables(2, 0)[0], -1, -1}));
  EXPECT_EQ(written.read(written.layout.groups[1].first_columns, 3), (Ints{3, 0, 0}));
  EXPECT_EQ(written.read(written.layout.groups[1].table, 9),
            (Ints{tables(0, 1)[3], tables(0, 1)[4], -1, tables(1, 1)[0], tables(1, 1)[1], tables(1, 1)[2],
                  tables(2, 1)[0], -1, -1}));
}

TEST(StepBlock, PromptTargetsBesideSamples) {
  Case test;
  test.add(3, 3, true);
  test.build();
  test.step.batch.logit_rows = {0, 1, 2};
  test.step.samples = {{.logit_row = 2, .slot = 5}};
  test.step.prompt_logprobs = {{.logit_row = 0, .slot = 5, .target = 60}, {.logit_row = 1, .slot = 5, .target = 61}};
  const Written written(test);
  EXPECT_FALSE(written.shape.last_tokens_only);
  EXPECT_EQ(written.read(written.layout.logit_rows, 3), (Ints{0, 1, 2}));
  EXPECT_EQ(written.read(written.layout.sample_slots, 3), (Ints{-1, -1, 5}));
  EXPECT_EQ(written.read(written.layout.target_slots, 3), (Ints{5, 5, -1}));
  EXPECT_EQ(written.read(written.layout.targets, 3), (Ints{60, 61, -1}));
  EXPECT_FALSE(is_decode_step(test.step));
}

TEST(StepBlock, WhereLastTokensAreAll) {
  const auto batch = [](std::vector<int32_t> starts, std::vector<int32_t> rows) {
    Batch result;
    result.seq_lens.assign(starts.size() - 1, 9);
    result.token_ids.resize(static_cast<size_t>(starts.back()));
    result.query_start = std::move(starts);
    result.logit_rows = std::move(rows);
    return result;
  };
  EXPECT_TRUE(wants_last_tokens_only(batch({0, 3, 4, 9}, {2, 3, 8})));
  EXPECT_TRUE(wants_last_tokens_only(batch({0, 3, 4, 9}, {8})));
  EXPECT_TRUE(wants_last_tokens_only(batch({0, 3, 4, 9}, {})));
  EXPECT_FALSE(wants_last_tokens_only(batch({0, 3, 4, 9}, {1, 2})));
  EXPECT_FALSE(wants_last_tokens_only(batch({0, 3, 4, 9}, {2, 7})));
  EXPECT_FALSE(wants_last_tokens_only(batch({0, 3, 4, 9}, {8, 9})));     // outside the batch
  EXPECT_FALSE(wants_last_tokens_only(batch({0, 1, 2, 3}, {0, 1, 2})));  // one token each: nothing to leave out
  EXPECT_FALSE(wants_last_tokens_only(batch({0, 3, 3, 9}, {2})));        // a sequence without a last token
}

TEST(StepBlock, PaddingIsRowsOfNothing) {
  Case test;
  test.add(33, 1, true);
  test.add(17, 1, false);  // computed again after a preemption: nothing is drawn
  test.build();
  test.step.samples = {{.logit_row = 0, .slot = 3}};
  ASSERT_TRUE(is_decode_step(test.step));
  test.step.starts.resize(1);  // a newcomer may begin with a page that the step fills
  EXPECT_FALSE(is_decode_step(test.step));
  test.step.starts.clear();
  const Written written(test, 4);
  EXPECT_EQ(written.read(written.layout.token_ids, 4), (Ints{100, 101, 0, 0}));
  EXPECT_EQ(written.read(written.layout.positions, 4), (Ints{32, 16, 0, 0}));
  EXPECT_EQ(written.read(written.layout.query_start, 5), (Ints{0, 1, 2, 3, 4}));
  EXPECT_EQ(written.read(written.layout.seq_lens, 4), (Ints{33, 17, 0, 0}));
  EXPECT_EQ(written.read(written.layout.feedback_slots, 4), (Ints{-1, -1, -1, -1}));
  EXPECT_EQ(written.read(written.layout.logit_rows, 4), (Ints{0, 0, 0, 0}));
  EXPECT_EQ(written.read(written.layout.sample_slots, 4), (Ints{3, -1, -1, -1}));
  const auto slots = written.read<int64_t>(written.layout.groups[0].slots, 4);
  EXPECT_EQ(slots[2], -1);
  EXPECT_EQ(slots[3], -1);
  EXPECT_EQ(written.read(written.layout.groups[1].first_columns, 4), (Ints{0, 0, 0, 0}));
}

// What a graph remembers must not move when contexts grow.
TEST(StepBlock, OnlyTablesMoveWithTheContext) {
  StepShape shape{.num_tokens = 5, .num_sequences = 5, .num_logit_rows = 5, .table_columns = {1, 1, 1}};
  const StepLayout narrow = step_layout(shape);
  shape.table_columns = {700, 3, 90};
  const StepLayout wide = step_layout(shape);
  EXPECT_EQ(narrow.token_ids, wide.token_ids);
  EXPECT_EQ(narrow.positions, wide.positions);
  EXPECT_EQ(narrow.feedback_slots, wide.feedback_slots);
  EXPECT_EQ(narrow.query_start, wide.query_start);
  EXPECT_EQ(narrow.seq_lens, wide.seq_lens);
  EXPECT_EQ(narrow.logit_rows, wide.logit_rows);
  EXPECT_EQ(narrow.sample_slots, wide.sample_slots);
  EXPECT_EQ(narrow.target_slots, wide.target_slots);
  EXPECT_EQ(narrow.targets, wide.targets);
  for (size_t g = 0; g < 3; ++g) {
    EXPECT_EQ(narrow.groups[g].slots, wide.groups[g].slots);
    EXPECT_EQ(narrow.groups[g].first_columns, wide.groups[g].first_columns);
  }
  EXPECT_EQ(wide.bytes - narrow.bytes, 4 * 5 * (700 + 3 + 90) + 12 - 3 * 32);  // arrays end at multiples of 16
}

// Every array in its own bytes, at a multiple of 16, for shapes of all sizes.
TEST(StepBlock, ArraysDoNotOverlap) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    const auto any = [&](int most) { return std::uniform_int_distribution<int64_t>(0, most)(random); };
    const StepShape shape{.num_tokens = any(70),
                          .num_sequences = any(40),
                          .num_logit_rows = any(70),
                          .spans = any(1) == 1,
                          .table_columns = {any(9), any(30)}};
    const StepLayout layout = step_layout(shape);
    std::vector<std::pair<int64_t, int64_t>> arrays;
    const auto add = [&](int64_t offset, int64_t bytes) {
      EXPECT_EQ(offset % 16, 0);
      if (bytes > 0) arrays.emplace_back(offset, offset + bytes);
    };
    for (const int64_t offset : {layout.token_ids, layout.positions, layout.feedback_slots}) {
      add(offset, 4 * shape.num_tokens);
    }
    add(layout.query_start, 4 * (shape.num_sequences + 1));
    add(layout.seq_lens, 4 * shape.num_sequences);
    for (const int64_t offset : {layout.logit_rows, layout.sample_slots, layout.target_slots, layout.targets}) {
      add(offset, 4 * shape.num_logit_rows);
    }
    for (size_t g = 0; g < 2; ++g) {
      add(layout.groups[g].slots, 8 * shape.num_tokens);
      add(layout.groups[g].first_columns, 4 * shape.num_sequences);
      add(layout.groups[g].table, 4 * shape.num_sequences * shape.table_columns[g]);
    }
    if (shape.spans) add(layout.span_ids, 4 * shape.num_tokens);
    std::ranges::sort(arrays);
    for (size_t i = 0; i + 1 < arrays.size(); ++i) EXPECT_LE(arrays[i].second, arrays[i + 1].first);
    EXPECT_LE(arrays.back().second, layout.bytes);
  }
}

TEST(StepBlock, SpanIdsOfSomeTokensAreRefused) {
  Case test;
  test.add(9, 9, true);
  test.build();
  test.step.batch.span_ids = Ints(8, 0);
  EXPECT_THROW(Written{test}, Error);
}

TEST(StepBlock, RefusesListsThatContradictTheBatch) {
  Case test;
  test.add(7, 1, true);
  test.add(9, 1, true);
  test.build();
  const auto refused = [&](auto change) {
    Case wrong;
    wrong.step = test.step;
    change(wrong.step);
    testing::expect_error([&] { const Written written(wrong); }, ErrorKind::kInternal, {"step with"});
  };
  refused([](Step& step) { step.samples = {{.logit_row = 2, .slot = 0}}; });
  refused([](Step& step) { step.samples = {{.logit_row = 1, .slot = 0}, {.logit_row = 1, .slot = 1}}; });
  refused([](Step& step) { step.feedback = {{.row = 2, .slot = 0}}; });
  refused([](Step& step) { step.feedback = {{.row = -1, .slot = 0}}; });
  refused([](Step& step) { step.prompt_logprobs = {{.logit_row = -1, .slot = 0, .target = 1}}; });
  refused([](Step& step) { step.batch.groups.pop_back(); });
  refused([](Step& step) { step.batch.groups[0].max_pages = 0; });
  testing::expect_error([&] { (void)step_shape(test.step, test.plan, 1); }, ErrorKind::kInternal, {"its graph"});
}

TEST(StepBlock, GraphSizes) {
  EXPECT_EQ(decode_graph_sizes(1), (std::vector<int64_t>{1}));
  EXPECT_EQ(decode_graph_sizes(2), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(decode_graph_sizes(27), (std::vector<int64_t>{1, 2, 4, 8, 16, 24, 27}));
  EXPECT_EQ(decode_graph_sizes(32), (std::vector<int64_t>{1, 2, 4, 8, 16, 24, 32}));
  EXPECT_EQ(decode_graph_sizes(256).size(), 35U);
  const std::vector<int64_t> sizes = decode_graph_sizes(27);
  EXPECT_EQ(padded_size(sizes, 1), 1);
  EXPECT_EQ(padded_size(sizes, 3), 4);
  EXPECT_EQ(padded_size(sizes, 9), 16);
  EXPECT_EQ(padded_size(sizes, 25), 27);
  EXPECT_EQ(padded_size(sizes, 27), 27);
  EXPECT_EQ(padded_size(sizes, 28), 0);
}

}  // namespace
}  // namespace quaver
