// A batch that is brought up to date step after step says what one built anew says.
#include "model/batch_builder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <span>

#include "quaver/error.h"
#include "testing/cache_plans.h"
#include "testing/random.h"

namespace quaver {
namespace {

using testing::plan_of;
using testing::Random;

struct Share {
  SequencePages* pages = nullptr;
  std::vector<int32_t> tokens;
  std::vector<int32_t> logit_rows;
};

void build(const KvManager& manager, std::span<const Share> shares, BatchBuilder& builder, Batch& batch) {
  builder.begin(manager, batch);
  for (const Share& share : shares) {
    builder.add(manager, {.pages = *share.pages, .tokens = share.tokens, .logit_rows = share.logit_rows}, batch);
  }
}

/// The same in one call for the shares of one token at the beginning.
void build_from_arrays(const KvManager& manager, const std::vector<Share>& shares, BatchBuilder& builder,
                       Batch& batch) {
  std::vector<int64_t> num_tokens;
  std::vector<int32_t> tokens;
  std::vector<uint64_t> versions;
  std::vector<const SequencePages*> pages;
  size_t row = 0;
  for (; row < shares.size() && shares[row].tokens.size() == 1; ++row) {
    num_tokens.push_back(shares[row].pages->num_tokens);
    tokens.push_back(shares[row].tokens.front());
    versions.push_back(shares[row].pages->version);
    pages.push_back(shares[row].pages);
  }
  builder.begin(manager, {.num_tokens = num_tokens, .tokens = tokens, .versions = versions, .pages = pages}, batch);
  for (size_t i = 0; i < row; ++i) {
    if (!shares[i].logit_rows.empty()) batch.logit_rows.push_back(static_cast<int32_t>(i));
  }
  for (; row < shares.size(); ++row) {
    const Share& share = shares[row];
    builder.add(manager, {.pages = *share.pages, .tokens = share.tokens, .logit_rows = share.logit_rows}, batch);
  }
}

/// Tables may differ in width; what is beyond the narrower one must be unused.
void expect_same_tables(const Batch& a, const Batch& b) {
  ASSERT_EQ(a.groups.size(), b.groups.size());
  const auto entry = [](const Batch::Group& group, int64_t row, int64_t column) {
    return column < group.max_pages ? group.block_table[static_cast<size_t>(row * group.max_pages + column)] : -1;
  };
  for (size_t g = 0; g < a.groups.size(); ++g) {
    EXPECT_EQ(a.groups[g].slots, b.groups[g].slots);
    const int64_t width = std::max(a.groups[g].max_pages, b.groups[g].max_pages);
    for (int64_t row = 0; row < a.num_sequences(); ++row) {
      for (int64_t column = 0; column < width; ++column) {
        ASSERT_EQ(entry(a.groups[g], row, column), entry(b.groups[g], row, column))
            << "group " << g << " row " << row << " entry " << column;
      }
    }
  }
}

// Sequences come, grow, fork, lose their window, change rows, end, and others take their rows.
TEST(BatchBuilder, UpToDateEqualsBuiltAnew) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    Random random(seed);
    KvManager manager(plan_of({{}, {.num_kv_heads = 2, .window = 20}, {.window = 1}}), 600, true);
    std::vector<SequencePages> live;
    BatchBuilder builder;
    Batch batch;
    for (int step = 0; step < 200; ++step) {
      if (live.empty() || (live.size() < 8 && random.below(5) == 0)) live.emplace_back();
      if (live.size() < 8 && random.below(20) == 0) live.push_back(manager.fork(live.front()));
      if (random.below(15) == 0) {
        const auto victim = live.begin() + random.below(std::ssize(live));
        manager.release(*victim);
        live.erase(victim);  // the others move up a row
      }
      std::vector<Share> shares;
      for (SequencePages& pages : live) {
        if (random.below(6) == 0) continue;  // not in this step
        const int64_t count = random.below(3) == 0 ? 1 + random.below(40) : 1;
        (void)manager.append(pages, count);
        Share share{.pages = &pages, .tokens = {}, .logit_rows = {}};
        for (int64_t i = 0; i < count; ++i) {
          share.tokens.push_back(static_cast<int32_t>(random.below(1000)));
          if (random.below(2) == 0) share.logit_rows.push_back(static_cast<int32_t>(i));
        }
        shares.push_back(std::move(share));
      }
      if (seed % 2 == 0) std::ranges::stable_partition(shares, [](const Share& s) { return s.tokens.size() == 1; });
      build_from_arrays(manager, shares, builder, batch);
      BatchBuilder anew_builder;
      Batch anew;
      build(manager, shares, anew_builder, anew);
      EXPECT_EQ(batch.token_ids, anew.token_ids);
      EXPECT_EQ(batch.positions, anew.positions);
      EXPECT_EQ(batch.query_start, anew.query_start);
      EXPECT_EQ(batch.seq_lens, anew.seq_lens);
      EXPECT_EQ(batch.logit_rows, anew.logit_rows);
      expect_same_tables(batch, anew);
      if (HasFatalFailure()) FAIL() << "seed " << seed << " step " << step;
    }
    for (SequencePages& pages : live) manager.release(pages);
    EXPECT_EQ(manager.num_free_pages(), 600);
  }
}

// By hand: two sequences, pages of 16 tokens, a window of 16.
TEST(BatchBuilder, ABatchByHand) {
  KvManager manager(plan_of({{}, {.window = 16}}), 20, false);
  SequencePages a;
  SequencePages b;
  BatchBuilder builder;
  Batch batch;
  (void)manager.append(a, 17);  // pages 0 1, 2 3
  (void)manager.append(b, 2);   // pages 4, 5
  std::vector<int32_t> first(17);
  std::iota(first.begin(), first.end(), 100);
  build(manager,
        std::vector<Share>{{.pages = &a, .tokens = first, .logit_rows = {16}},
                           {.pages = &b, .tokens = {7, 8}, .logit_rows = {0, 1}}},
        builder, batch);
  EXPECT_EQ(batch.query_start, (std::vector<int32_t>{0, 17, 19}));
  EXPECT_EQ(batch.seq_lens, (std::vector<int32_t>{17, 2}));
  EXPECT_EQ(batch.positions[16], 16);
  EXPECT_EQ(batch.positions[18], 1);
  EXPECT_EQ(batch.logit_rows, (std::vector<int32_t>{16, 17, 18}));
  EXPECT_EQ(batch.groups[0].block_table, (std::vector<int32_t>{0, 1, 4, -1}));
  EXPECT_EQ(batch.groups[1].block_table, (std::vector<int32_t>{2, 3, 5, -1}));
  EXPECT_EQ(batch.groups[1].slots[16], 3 * 16);
  EXPECT_EQ(batch.groups[1].slots[18], 5 * 16 + 1);

  (void)manager.append(a, 15);
  (void)manager.append(a, 1);  // position 32 sees 17 to 32: the first sliding page is gone, and taken again
  build(manager, std::vector<Share>{{.pages = &a, .tokens = {9}, .logit_rows = {}}}, builder, batch);
  EXPECT_EQ(batch.num_sequences(), 1);
  EXPECT_EQ(batch.groups[1].block_table[0], -1);
  EXPECT_EQ(batch.groups[1].block_table[1], 3);
  EXPECT_EQ(batch.groups[0].slots, (std::vector<int64_t>{a.tables[0][2] * 16}));
}

// Ids of images: none in a batch of text, -1 in text beside them; the number of the image in its sequence.
TEST(BatchBuilder, SpanIdsAreThoseOfTheTokensOfTheStep) {
  KvManager manager(plan_of({{}}), 40, false);
  const std::vector<TokenSpan> spans{{1, 3}, {3, 4}, {6, 8}};
  std::vector<SequencePages> pages(3);
  BatchBuilder builder;
  Batch batch;
  const auto step = [&](const std::vector<int64_t>& counts) {
    builder.begin(manager, batch);
    for (size_t i = 0; i < pages.size(); ++i) {
      (void)manager.append(pages[i], counts[i]);
      const std::vector<int32_t> tokens(static_cast<size_t>(counts[i]), 5);
      const bool images = i == 1;
      builder.add(manager, {.pages = pages[i], .tokens = tokens, .spans = images ? spans : std::vector<TokenSpan>{}},
                  batch);
    }
  };
  step({2, 1, 1});
  EXPECT_EQ(batch.span_ids, (std::vector<int32_t>{}));  // of the images none is in this step
  step({2, 4, 1});
  EXPECT_EQ(batch.span_ids, (std::vector<int32_t>{-1, -1, 0, 0, 1, -1, -1}));
  step({1, 3, 3});
  EXPECT_EQ(batch.span_ids, (std::vector<int32_t>{-1, -1, 2, 2, -1, -1, -1}));
  step({1, 1, 1});
  EXPECT_EQ(batch.span_ids, (std::vector<int32_t>{}));
}

TEST(BatchBuilder, RefusesStepsThatCutASpan) {
  for (const auto& [first, count] : std::vector<std::pair<int64_t, int64_t>>{{0, 2}, {2, 3}, {3, 1}}) {
    KvManager manager(plan_of({{}}), 20, false);
    SequencePages pages;
    if (first > 0) (void)manager.append(pages, first);
    (void)manager.append(pages, count);
    BatchBuilder builder;
    Batch batch;
    builder.begin(manager, batch);
    const std::vector<TokenSpan> spans{{1, 4}};
    const std::vector<int32_t> tokens(static_cast<size_t>(count), 5);
    EXPECT_THROW(builder.add(manager, {.pages = pages, .tokens = tokens, .spans = spans}, batch), Error) << first;
  }
}

TEST(BatchBuilder, RefusesStepsThatCannotBe) {
  KvManager manager(plan_of({{}}), 20, false);
  SequencePages pages;
  (void)manager.append(pages, 3);
  BatchBuilder builder;
  Batch batch;
  const auto refused = [&](const Share& share) { EXPECT_THROW(build(manager, {&share, 1}, builder, batch), Error); };
  refused({.pages = &pages, .tokens = {}, .logit_rows = {}});
  refused({.pages = &pages, .tokens = {1, 2, 3, 4}, .logit_rows = {}});
  refused({.pages = &pages, .tokens = {1, 2}, .logit_rows = {2}});
  refused({.pages = &pages, .tokens = {1, 2}, .logit_rows = {-1}});
}

}  // namespace
}  // namespace quaver
