// B41: prefix reuse: hits, the token left to compute, salts, collisions, reuse of pages, windows.
#include <gtest/gtest.h>

#include <numeric>

#include "kv_cache/manager.h"
#include "testing/cache_plans.h"

namespace quaver {
namespace {

using testing::plan_of;

/// Hash function of an adversary: everything collides.
uint64_t constant_hash(uint64_t /*previous*/, std::span<const int32_t> /*tokens*/, std::string_view /*salt*/) {
  return 42;
}

std::vector<int32_t> tokens_from(int32_t first, int64_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

/// Runs a prompt in one chunk and releases it; returns how many of its tokens were cached.
int64_t serve(KvManager& manager, const std::vector<int32_t>& prompt, std::string_view salt = {}) {
  SequencePages sequence;
  const int64_t cached = manager.match_prefix(sequence, prompt, salt);
  (void)manager.append(sequence, std::ssize(prompt) - cached);
  manager.commit(sequence, prompt);
  manager.release(sequence);
  return cached;
}

TEST(Prefix, SecondTimeHitsFullPagesAndLeavesOneToken) {
  const std::vector<std::pair<int64_t, int64_t>> cases{{1, 0},   {15, 0},  {16, 0},  {17, 16},
                                                       {32, 16}, {33, 32}, {48, 32}, {49, 48}};
  for (const auto hash : {&hash_token_block, &constant_hash}) {
    for (const auto& [length, expected] : cases) {
      KvManager manager(plan_of({{}}), 10, true, hash);
      const std::vector<int32_t> prompt = tokens_from(100, length);
      EXPECT_EQ(serve(manager, prompt), 0);
      EXPECT_EQ(serve(manager, prompt), expected) << length;
      EXPECT_EQ(serve(manager, prompt), expected) << length;
      EXPECT_EQ(manager.num_free_pages(), 10);
    }
  }
}

TEST(Prefix, MatchSharesThePagesOfALiveSequence) {
  KvManager manager(plan_of({{}}), 10, true);
  const std::vector<int32_t> prompt = tokens_from(0, 40);
  SequencePages first;
  EXPECT_EQ(manager.match_prefix(first, prompt), 0);
  (void)manager.append(first, 40);
  SequencePages early;
  EXPECT_EQ(manager.match_prefix(early, prompt), 0);  // not committed yet
  manager.commit(first, std::span(prompt).first(20));
  SequencePages second;
  EXPECT_EQ(manager.match_prefix(second, prompt), 16);
  manager.release(second);
  manager.commit(first, prompt);
  EXPECT_EQ(manager.match_prefix(second, prompt), 32);
  EXPECT_EQ(second.tables[0], (std::vector<int32_t>{first.tables[0][0], first.tables[0][1]}));
  EXPECT_EQ(manager.num_free_pages(), 7);
  (void)manager.append(second, 8);
  EXPECT_NE(second.tables[0][2], first.tables[0][2]);
  EXPECT_THROW(manager.match_prefix(second, prompt), Error);  // it has tokens
  EXPECT_THROW(manager.commit(second, tokens_from(0, 41)), Error);
}

TEST(Prefix, DifferentTokensNeverShareEvenWhenHashesCollide) {
  for (const auto hash : {&hash_token_block, &constant_hash}) {
    KvManager manager(plan_of({{}}), 20, true, hash);
    const std::vector<int32_t> prompt = tokens_from(0, 49);
    EXPECT_EQ(serve(manager, prompt), 0);
    for (const auto& [position, expected] : {std::pair{0, 0}, {15, 0}, {16, 16}, {31, 16}, {47, 32}, {48, 48}}) {
      std::vector<int32_t> other = prompt;
      other[static_cast<size_t>(position)] += 1000;
      SequencePages sequence;
      EXPECT_EQ(manager.match_prefix(sequence, other), expected) << position;
      manager.release(sequence);
    }
    // The same block after another predecessor is another block.
    std::vector<int32_t> shifted = tokens_from(500, 16);
    shifted.insert(shifted.end(), prompt.begin() + 16, prompt.end());
    EXPECT_EQ(serve(manager, shifted), 0);
  }
}

TEST(Prefix, DifferentSaltsNeverShare) {
  for (const auto hash : {&hash_token_block, &constant_hash}) {
    KvManager manager(plan_of({{}}), 20, true, hash);
    const std::vector<int32_t> prompt = tokens_from(0, 33);
    EXPECT_EQ(serve(manager, prompt, "A"), 0);
    EXPECT_EQ(serve(manager, prompt, "B"), 0);
    EXPECT_EQ(serve(manager, prompt, ""), 0);
    EXPECT_EQ(serve(manager, prompt, "A"), 32);
    EXPECT_EQ(serve(manager, prompt, "B"), 32);
    EXPECT_EQ(serve(manager, prompt, ""), 32);
  }
}

TEST(Prefix, ReusedPagesAreForgotten) {
  KvManager manager(plan_of({{}}), 4, true);
  const std::vector<int32_t> first = tokens_from(0, 49);
  const std::vector<int32_t> second = tokens_from(500, 64);
  EXPECT_EQ(serve(manager, first), 0);
  EXPECT_EQ(manager.num_cached_pages(), 3);
  EXPECT_EQ(serve(manager, second), 0);  // takes all four pages
  EXPECT_EQ(manager.num_cached_pages(), 4);
  EXPECT_EQ(serve(manager, first), 0);
  EXPECT_EQ(serve(manager, first), 48);
}

TEST(Prefix, TheEndOfALongUnusedPrefixGoesFirst) {
  KvManager manager(plan_of({{}}), 6, true);
  const std::vector<int32_t> prompt = tokens_from(0, 64);
  EXPECT_EQ(serve(manager, prompt), 0);
  SequencePages other;
  (void)manager.append(other, 4 * 16);  // two unused pages, then the prompt's last two
  SequencePages again;
  EXPECT_EQ(manager.match_prefix(again, prompt), 32);
  EXPECT_EQ(manager.num_free_pages(), 0);
}

TEST(Prefix, OffMeansNoSharing) {
  KvManager manager(plan_of({{}}), 20, false);
  const std::vector<int32_t> prompt = tokens_from(0, 40);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(serve(manager, prompt), 0);
  EXPECT_EQ(manager.num_cached_pages(), 0);
}

// Full pages of 32 tokens, sliding pages of 16, window 20.
class SlidingPrefix : public ::testing::Test {
 protected:
  KvManager manager_{plan_of({{.num_kv_heads = 2, .window = 20}, {.num_kv_heads = 1}}), 60, true};
  std::vector<int32_t> prompt_ = tokens_from(0, 200);
};

TEST_F(SlidingPrefix, AHitTakesOnlyTheVisiblePages) {
  EXPECT_EQ(serve(manager_, prompt_), 0);
  SequencePages sequence;
  EXPECT_EQ(manager_.match_prefix(sequence, prompt_), 192);
  EXPECT_EQ(std::ssize(sequence.tables[0]), 6);
  // The query at 192 sees 173 … 192: of the sliding pages only 10 (160 … 175) and 11.
  const std::vector<int32_t>& sliding = sequence.tables[1];
  ASSERT_EQ(sliding.size(), 12U);
  EXPECT_EQ(std::count(sliding.begin(), sliding.begin() + 10, -1), 10);
  EXPECT_GE(sliding[10], 0);
  EXPECT_GE(sliding[11], 0);
  EXPECT_EQ(manager_.num_free_pages(), 60 - 6 - 2);
}

TEST_F(SlidingPrefix, TokensThatLeftTheWindowStayReusableUntilTheirPagesAreNeeded) {
  SequencePages sequence;
  (void)manager_.match_prefix(sequence, prompt_);
  for (int64_t done = 0; done < 200; done += 8) {
    (void)manager_.append(sequence, 8);
    manager_.commit(sequence, std::span(prompt_).first(static_cast<size_t>(done + 8)));
  }
  for (const int64_t length : {33, 64, 65, 150}) {
    SequencePages other;
    EXPECT_EQ(manager_.match_prefix(other, std::span(prompt_).first(static_cast<size_t>(length))),
              (length - 1) / 32 * 32);
    manager_.release(other);
  }
}

// Without the window's pages the full group's pages are worth nothing: the hit ends where a whole window is cached.
TEST_F(SlidingPrefix, AHitNeedsTheWholeWindow) {
  SequencePages sequence;
  (void)manager_.match_prefix(sequence, prompt_);
  (void)manager_.append(sequence, 100);
  manager_.commit(sequence, std::span(prompt_).first(100));
  (void)manager_.append(sequence, 100);  // sliding pages 0 … 4 leave the window: free, but cached
  manager_.commit(sequence, prompt_);
  const int64_t free_pages = manager_.num_free_pages();
  EXPECT_EQ(free_pages, 60 - 7 - 13 + 5);
  SequencePages probe;
  EXPECT_EQ(manager_.match_prefix(probe, std::span(prompt_).first(97)), 96);
  manager_.release(probe);
  // Another sequence takes every free page: sliding pages 0 … 4 (tokens 0 … 79) are gone.
  SequencePages other;
  (void)manager_.append(other, 16 * 2 * (free_pages / 3));
  while (manager_.num_free_pages() > 0) ASSERT_NO_THROW((void)manager_.append(other, 1));
  // At 96 the window 77 … 95 has lost tokens 77 … 79; at 128 all of 109 … 127 is there.
  EXPECT_EQ(manager_.match_prefix(probe, std::span(prompt_).first(97)), 0);
  EXPECT_EQ(manager_.match_prefix(probe, std::span(prompt_).first(129)), 128);
}

TEST(PrefixIndex, ABlockStaysWhileItHasPagesOrSuccessors) {
  PrefixIndex index(2, 10, hash_token_block);
  const std::vector<int32_t> a{1, 2};
  const std::vector<int32_t> b{3, 4};
  const PrefixIndex::Link first = index.add({}, a, "s", std::vector<int32_t>{0, 5});
  const PrefixIndex::Link second = index.add(first, b, "s", std::vector<int32_t>{1, -1});
  EXPECT_EQ(index.num_blocks(), 2);
  EXPECT_EQ(index.num_pages(), 3);
  ASSERT_NE(index.find({}, a, "s"), nullptr);
  EXPECT_EQ(index.find({}, a, "t"), nullptr);
  EXPECT_EQ(index.find({}, b, "s"), nullptr);
  EXPECT_EQ(index.find(first, b, "s")->link.id, second.id);
  index.forget_page(0);
  index.forget_page(5);
  index.forget_page(9);              // never known
  EXPECT_EQ(index.num_blocks(), 2);  // the first carries the second
  EXPECT_EQ(index.find({}, a, "s")->pages, (std::vector<int32_t>{-1, -1}));
  // Another sequence computes the first block again: its pages fill the gaps.
  EXPECT_EQ(index.add({}, a, "s", std::vector<int32_t>{7, -1}).id, first.id);
  EXPECT_EQ(index.find({}, a, "s")->pages, (std::vector<int32_t>{7, -1}));
  index.forget_page(1);
  EXPECT_EQ(index.num_blocks(), 1);
  EXPECT_FALSE(index.contains(second));
  index.forget_page(7);
  EXPECT_EQ(index.num_blocks(), 0);
  EXPECT_EQ(index.num_pages(), 0);
  EXPECT_FALSE(index.contains(first));
  EXPECT_TRUE(index.contains({}));
}

TEST(PrefixIndex, FirstComeKeepsItsPages) {
  PrefixIndex index(1, 10, constant_hash);
  const std::vector<int32_t> a{1};
  const std::vector<int32_t> b{2};
  const PrefixIndex::Link first = index.add({}, a, "", std::vector<int32_t>{3});
  EXPECT_EQ(index.add({}, a, "", std::vector<int32_t>{4}).id, first.id);
  EXPECT_EQ(index.find({}, a, "")->pages, (std::vector<int32_t>{3}));
  EXPECT_EQ(index.num_pages(), 1);
  // A page stands for one block only, and a block without a page of its own is not added.
  EXPECT_EQ(index.add({}, b, "", std::vector<int32_t>{3}).id, 0U);
  EXPECT_EQ(index.add({}, b, "", std::vector<int32_t>{-1}).id, 0U);
  EXPECT_EQ(index.num_blocks(), 1);
  EXPECT_THROW(index.add({}, std::vector<int32_t>{}, "", std::vector<int32_t>{5}), Error);
}

// A key with more than the block's tokens, as image spans make it, is another block.
TEST(PrefixIndex, LongerKeysAreOtherBlocks) {
  PrefixIndex index(2, 10, constant_hash);
  const std::vector<int32_t> text{1, 2};
  const std::vector<int32_t> image{1, 2, 0, 1, 1};
  const PrefixIndex::Link first = index.add({}, text, "", std::vector<int32_t>{3});
  const PrefixIndex::Link second = index.add({}, image, "", std::vector<int32_t>{4});
  EXPECT_NE(first.id, second.id);
  EXPECT_EQ(index.find({}, text, "")->pages, (std::vector<int32_t>{3}));
  EXPECT_EQ(index.find({}, image, "")->pages, (std::vector<int32_t>{4}));
}

TEST(PrefixIndex, HashDependsOnPredecessorTokensAndSalt) {
  const std::vector<int32_t> tokens = tokens_from(7, 16);
  const uint64_t hash = hash_token_block(1, tokens, "A");
  EXPECT_EQ(hash, hash_token_block(1, tokens, "A"));
  EXPECT_NE(hash, hash_token_block(2, tokens, "A"));
  EXPECT_NE(hash, hash_token_block(1, tokens, "B"));
  EXPECT_NE(hash, hash_token_block(1, tokens, ""));
  for (size_t i = 0; i < tokens.size(); ++i) {
    std::vector<int32_t> other = tokens;
    other[i] ^= 1;
    EXPECT_NE(hash, hash_token_block(1, other, "A"));
  }
}

}  // namespace
}  // namespace quaver
