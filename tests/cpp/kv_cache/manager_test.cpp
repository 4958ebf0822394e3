// Block tables: growth, sliding windows, copy-on-write, out-of-memory.
#include "kv_cache/manager.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "testing/cache_plans.h"

namespace quaver {
namespace {

using testing::plan_of;

std::vector<int64_t> all_slots(const KvManager& manager, const SequencePages& sequence, int group) {
  std::vector<int64_t> slots(static_cast<size_t>(sequence.num_tokens));
  manager.slots(sequence, group, 0, sequence.num_tokens, slots.data());
  return slots;
}

TEST(KvManager, GivesPagesOfEveryGroupAsTokensCome) {
  // The full kind has half the bytes a token, so its pages have 32 tokens where the sliding kind's have 16.
  KvManager manager(plan_of({{.num_kv_heads = 2, .window = 1000}, {.num_kv_heads = 1}}), 20, false);
  SequencePages sequence;
  int64_t tokens = 0;
  for (const int64_t count : {0, 1, 15, 1, 15, 1, 100}) {
    EXPECT_TRUE(manager.append(sequence, count).empty());
    tokens += count;
    EXPECT_EQ(sequence.num_tokens, tokens);
    EXPECT_EQ(std::ssize(sequence.tables[0]), (tokens + 31) / 32);
    EXPECT_EQ(std::ssize(sequence.tables[1]), (tokens + 15) / 16);
    EXPECT_EQ(manager.num_free_pages(), 20 - (tokens + 31) / 32 - (tokens + 15) / 16);
  }
  std::set<int32_t> pages;
  for (const auto& table : sequence.tables) pages.insert(table.begin(), table.end());
  EXPECT_EQ(std::ssize(pages), 20 - manager.num_free_pages());
}

TEST(KvManager, SlotsArePageTimesPageSizePlusOffset) {
  KvManager manager(plan_of({{}}), 8, false);
  SequencePages other;
  SequencePages sequence;
  (void)manager.append(other, 5);      // page 0
  (void)manager.append(sequence, 16);  // page 1
  (void)manager.append(other, 12);     // page 2
  (void)manager.append(sequence, 4);   // page 3
  std::vector<int64_t> expected(20);
  std::iota(expected.begin(), expected.begin() + 16, 16);
  std::iota(expected.begin() + 16, expected.end(), 48);
  EXPECT_EQ(all_slots(manager, sequence, 0), expected);
  int64_t one = 0;
  manager.slots(sequence, 0, 17, 1, &one);
  EXPECT_EQ(one, 49);
  EXPECT_THROW(manager.slots(sequence, 0, 20, 1, &one), Error);
  EXPECT_THROW(manager.slots(sequence, 0, -1, 1, &one), Error);
  EXPECT_THROW(manager.slots(sequence, 0, 0, -1, &one), Error);
  EXPECT_THROW(manager.slots(sequence, 1, 0, 1, &one), Error);
  EXPECT_THROW(manager.slots(sequence, -1, 0, 1, &one), Error);
}

// B17: at every chunk size exactly the pages that no later query sees are gone; of single tokens the one that fills a
// page leaves it to the next, which wants a page, to give one up.
TEST(KvManager, ReleasesExactlyThePagesLeftOfTheWindow) {
  for (const int window : {1, 2, 15, 16, 17, 20, 32, 33}) {
    for (const int64_t chunk : {1, 7, 8, 15, 16, 17, 32, 33, 100}) {
      KvManager manager(plan_of({{.window = window}, {}}), 40, false);
      SequencePages sequence;
      for (int64_t first = 0; first < 140; first += chunk) {
        (void)manager.append(sequence, chunk);
        const std::vector<int32_t>& full = sequence.tables[0];
        EXPECT_EQ(std::count(full.begin(), full.end(), -1), 0);
        const std::vector<int32_t>& sliding = sequence.tables[1];
        // The first of the new tokens, at position `first`, sees first - window + 1 … first; later ones see no more.
        for (int64_t page = 0; page < std::ssize(sliding); ++page) {
          const bool visible = 16 * page + 15 >= first - window + 1;
          const bool waits = chunk == 1 && first % 16 == 15 && 16 * page + 15 == first - window;
          EXPECT_EQ(sliding[static_cast<size_t>(page)] >= 0, visible || waits)
              << "window " << window << " chunk " << chunk << " first " << first << " page " << page;
        }
        const int64_t held = std::count_if(sliding.begin(), sliding.end(), [](int32_t page) { return page >= 0; });
        EXPECT_EQ(manager.num_free_pages(), 40 - std::ssize(full) - held);
        EXPECT_LE(std::ssize(full) + held, manager.plan().blocks_for(sequence.num_tokens, chunk));
      }
      manager.release(sequence);
      EXPECT_EQ(manager.num_free_pages(), 40);
    }
  }
}

TEST(KvManager, SlotsLeftOfTheWindowAreRefused) {
  KvManager manager(plan_of({{.window = 16}}), 8, false);
  SequencePages sequence;
  (void)manager.append(sequence, 32);
  (void)manager.append(sequence, 1);
  int64_t slot = 0;
  EXPECT_THROW(manager.slots(sequence, 0, 15, 1, &slot), Error);
  EXPECT_NO_THROW(manager.slots(sequence, 0, 16, 1, &slot));
}

// A long generation in a sliding group lives on what its window needs.
TEST(KvManager, ASlidingGroupNeedsOnlyItsWindow) {
  KvManager manager(plan_of({{.window = 33}}), 3, false);
  ASSERT_EQ(manager.plan().blocks_for(1000), 3);
  SequencePages sequence;
  for (int i = 0; i < 1000; ++i) ASSERT_NO_THROW((void)manager.append(sequence, 1));
}

TEST(KvManager, OutOfMemoryChangesNothing) {
  KvManager manager(plan_of({{.window = 16}, {}}), 8, false);
  SequencePages sequence;
  (void)manager.append(sequence, 40);  // 3 + 3 pages
  const auto tables = sequence.tables;
  // 17 more: 2 new pages in each group; page 0 of the sliding group (tokens 0-15 of a window from 25) comes free: 3
  // < 4.
  EXPECT_FALSE(manager.can_append(sequence, 25));
  try {
    (void)manager.append(sequence, 25);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory);
    EXPECT_NE(
        std::string(error.what()).find("25 more tokens of a sequence of 40: expected 1 more than the 2 free of 8"),
        std::string::npos)
        << error.what();
  }
  EXPECT_EQ(sequence.tables, tables);
  EXPECT_EQ(sequence.num_tokens, 40);
  EXPECT_EQ(manager.num_free_pages(), 2);
  EXPECT_TRUE(manager.can_append(sequence, 24));
  EXPECT_NO_THROW((void)manager.append(sequence, 24));
  EXPECT_THROW((void)manager.append(sequence, -1), Error);
}

// The page that leaves the window is the one that the next token needs.
TEST(KvManager, AFullPoolGoesOnWithThePageThatLeftTheWindow) {
  KvManager manager(plan_of({{.window = 16}}), 2, false);
  SequencePages sequence;
  (void)manager.append(sequence, 32);
  EXPECT_EQ(manager.num_free_pages(), 0);
  EXPECT_TRUE(manager.can_append(sequence, 1));
  (void)manager.append(sequence, 1);
  EXPECT_EQ(sequence.tables[0], (std::vector<int32_t>{-1, 1, 0}));
}

TEST(KvManager, AForkSharesAndTheFirstWriterCopies) {
  KvManager manager(plan_of({{.num_kv_heads = 2, .window = 1000}, {.num_kv_heads = 1}}), 20, false);
  SequencePages first;
  (void)manager.append(first, 40);  // full: pages of 32, sliding: pages of 16
  const int64_t free_before = manager.num_free_pages();
  SequencePages second = manager.fork(first);
  EXPECT_EQ(second.tables, first.tables);
  EXPECT_EQ(manager.num_free_pages(), free_before);

  const auto shared = first.tables;
  const std::vector<PageCopy> copies = manager.append(second, 1);
  EXPECT_EQ(first.tables, shared);
  ASSERT_EQ(copies.size(), 2U);
  EXPECT_EQ(copies[0], (PageCopy{.from = shared[0][1], .to = second.tables[0][1]}));
  EXPECT_EQ(copies[1], (PageCopy{.from = shared[1][2], .to = second.tables[1][2]}));
  EXPECT_EQ(second.tables[0][0], shared[0][0]);
  EXPECT_EQ(second.tables[1][1], shared[1][1]);
  // The other is now the only owner of its last pages and writes in place.
  EXPECT_TRUE(manager.append(first, 1).empty());
  EXPECT_EQ(first.tables, shared);

  manager.release(first);
  EXPECT_LT(manager.num_free_pages(), 20);
  manager.release(second);
  EXPECT_EQ(manager.num_free_pages(), 20);
  manager.release(second);  // cancelling twice is harmless
  EXPECT_EQ(manager.num_free_pages(), 20);
  EXPECT_EQ(second.num_tokens, 0);
}

TEST(KvManager, FullSharedPagesAreNotCopied) {
  KvManager manager(plan_of({{}}), 8, false);
  SequencePages first;
  (void)manager.append(first, 32);
  SequencePages second = manager.fork(first);
  EXPECT_TRUE(manager.append(second, 1).empty());
  EXPECT_TRUE(manager.append(first, 0).empty());
  EXPECT_EQ(second.tables[0][1], first.tables[0][1]);
}

TEST(KvManager, CopyOnWriteNeedsAPage) {
  KvManager manager(plan_of({{}}), 1, false);
  SequencePages first;
  (void)manager.append(first, 8);
  SequencePages second = manager.fork(first);
  EXPECT_FALSE(manager.can_append(second, 1));
  EXPECT_THROW((void)manager.append(second, 1), Error);
  EXPECT_EQ(second.tables, first.tables);
  manager.release(first);
  EXPECT_TRUE(manager.append(second, 1).empty());
}

// B25: what a sequence holds does not depend on its batch-mates: same page counts, same offsets, same windows.
TEST(KvManager, ASequenceAloneAndAmongOthersHasTheSameShape) {
  const auto shape = [](int num_others) {
    KvManager manager(plan_of({{.window = 20}, {}}), 1000, true);
    std::vector<SequencePages> others(static_cast<size_t>(num_others));
    SequencePages sequence;
    std::vector<std::vector<bool>> held;
    for (int step = 0; step < 60; ++step) {
      for (size_t i = 0; i < others.size(); ++i) (void)manager.append(others[i], static_cast<int64_t>(i % 3));
      (void)manager.append(sequence, step % 5 == 0 ? 7 : 1);
      for (const auto& table : sequence.tables) {
        std::vector<bool>& pages = held.emplace_back();
        for (const int32_t page : table) pages.push_back(page >= 0);
      }
    }
    return held;
  };
  const auto alone = shape(0);
  for (const int others : {1, 2, 17, 32}) EXPECT_EQ(shape(others), alone);
}

}  // namespace
}  // namespace quaver
