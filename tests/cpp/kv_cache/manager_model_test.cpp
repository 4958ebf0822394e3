// The manager against a naive model: random serving with prefix hits, forks, windows, preemption and full pools, where
// every slot remembers which text was written to it. Whatever a query sees must be its own text.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "kv_cache/manager.h"
#include "testing/cache_plans.h"
#include "testing/random.h"

namespace quaver {
namespace {

using testing::plan_of;
using testing::Random;

/// A text up to and including one token, with the salt: what K and V at a position depend on.
using Text = uint64_t;

uint64_t colliding_hash(uint64_t previous, std::span<const int32_t> tokens, std::string_view /*salt*/) {
  return (previous + static_cast<uint64_t>(tokens[0])) % 3;
}

struct Live {
  SequencePages pages;
  std::string salt;
  std::vector<int32_t> tokens;  // with K and V
  std::vector<int32_t> prompt;
};

class Model {
 public:
  Model(const CachePlan& plan, int64_t num_pages, bool ample, PrefixIndex::HashFunction hash, uint64_t seed)
      : manager_(plan, num_pages, true, hash), ample_(ample), random_(seed), memory_(static_cast<size_t>(num_pages)) {
    for (auto& page : memory_) page.assign(static_cast<size_t>(plan.largest_page_tokens), 0);
  }

  void run(int steps) {
    for (int step = 0; step < steps && !::testing::Test::HasFatalFailure(); ++step) {
      const int64_t action = random_.below(12);
      if (live_.size() < 2 || (action == 0 && live_.size() < 7)) {
        start();
      } else if (action == 1 && live_.size() < 7) {
        fork(pick());
      } else if (action == 2 || action == 3) {
        finish(pick());
      } else {
        advance(pick());
      }
      check_ownership();
    }
    while (!live_.empty()) finish(live_.size() - 1);
    EXPECT_EQ(manager_.num_free_pages(), manager_.num_pages());
  }

  struct Counts {
    int64_t hits = 0;
    int64_t copies = 0;
    int64_t refusals = 0;  ///< appends that found no pages
  };
  [[nodiscard]] const Counts& counts() const { return counts_; }

 private:
  size_t pick() { return static_cast<size_t>(random_.below(std::ssize(live_))); }

  static Text extend(Text text, int32_t token) {
    return (text ^ static_cast<uint64_t>(token + 1)) * 0xD1342543DE82EF95U + 0x632BE59BD9B4E019U;
  }
  static Text start_of(const std::string& salt) { return salt.empty() ? 1U : static_cast<Text>(salt[0]); }

  /// Texts at every position of a sequence.
  static std::vector<Text> texts(const Live& sequence) {
    std::vector<Text> out;
    Text text = start_of(sequence.salt);
    for (const int32_t token : sequence.tokens) out.push_back(text = extend(text, token));
    return out;
  }

  /// The longest prefix that some sequence has committed, in whole blocks, one token short of the prompt.
  int64_t longest_committed(const Live& sequence) const {
    const int64_t block = manager_.plan().largest_page_tokens;
    Text text = start_of(sequence.salt);
    int64_t longest = 0;
    for (int64_t i = 0; i + 1 < std::ssize(sequence.prompt); ++i) {
      text = extend(text, sequence.prompt[static_cast<size_t>(i)]);
      if ((i + 1) % block != 0) continue;
      if (!committed_.contains(text)) break;
      longest = i + 1;
    }
    return longest;
  }

  void start() {
    Live sequence;
    sequence.salt = std::array<const char*, 3>{"", "A", "B"}[static_cast<size_t>(random_.below(10) / 4)];
    // Few tokens and few lengths, so that prompts share beginnings.
    const int32_t topic = static_cast<int32_t>(random_.below(3));
    const int64_t length = 1 + random_.below(130);
    const int64_t turn = random_.below(length);
    for (int64_t i = 0; i < length; ++i) {
      sequence.prompt.push_back(i < turn ? topic + static_cast<int32_t>(i % 5)
                                         : static_cast<int32_t>(random_.below(2)));
    }
    const int64_t cached = manager_.match_prefix(sequence.pages, sequence.prompt, sequence.salt);
    ASSERT_EQ(cached % manager_.plan().largest_page_tokens, 0);
    ASSERT_LT(cached, length);
    ASSERT_EQ(cached, sequence.pages.num_tokens);
    if (ample_) {
      ASSERT_EQ(cached, longest_committed(sequence));
    }
    counts_.hits += cached > 0 ? 1 : 0;
    sequence.tokens.assign(sequence.prompt.begin(), sequence.prompt.begin() + cached);
    live_.push_back(std::move(sequence));
  }

  void fork(size_t i) {
    Live copy;
    copy.pages = manager_.fork(live_[i].pages);
    copy.salt = live_[i].salt;
    copy.tokens = live_[i].tokens;
    copy.prompt = live_[i].prompt;
    live_.push_back(std::move(copy));
  }

  void finish(size_t i) {
    manager_.release(live_[i].pages);
    live_.erase(live_.begin() + static_cast<int64_t>(i));
  }

  /// One step of one sequence: a chunk of its prompt, or a generated token.
  void advance(size_t i) {
    Live& sequence = live_[i];
    const int64_t first = std::ssize(sequence.tokens);
    const int64_t left = std::ssize(sequence.prompt) - first;
    const int64_t count = left > 0 ? 1 + random_.below(left) : 1 + random_.below(3);
    const bool possible = manager_.can_append(sequence.pages, count);
    const auto tables = sequence.pages.tables;
    const int64_t free_before = manager_.num_free_pages();
    std::vector<PageCopy> copies;
    try {
      copies = manager_.append(sequence.pages, count);
      ASSERT_TRUE(possible);
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::kOutOfMemory);
      ASSERT_FALSE(possible);
      ASSERT_EQ(sequence.pages.tables, tables);
      ASSERT_EQ(manager_.num_free_pages(), free_before);
      ++counts_.refusals;
      finish(i);  // preempted
      return;
    }
    counts_.copies += std::ssize(copies);
    for (const PageCopy& copy : copies) {
      memory_[static_cast<size_t>(copy.to)] = memory_[static_cast<size_t>(copy.from)];
    }
    for (int64_t t = first; t < first + count; ++t) {
      sequence.tokens.push_back(t < std::ssize(sequence.prompt) ? sequence.prompt[static_cast<size_t>(t)]
                                                                : static_cast<int32_t>(random_.below(2)));
    }
    write(sequence, first);
    read(sequence, first);
    if (!ample_ && random_.below(4) == 0) return;  // not every step commits
    manager_.commit(sequence.pages, sequence.tokens);
    const std::vector<Text> own = texts(sequence);
    const auto block = static_cast<size_t>(manager_.plan().largest_page_tokens);
    for (size_t t = block; t <= own.size(); t += block) committed_.insert(own[t - 1]);
  }

  void write(const Live& sequence, int64_t first) {
    const std::vector<Text> own = texts(sequence);
    const int64_t count = std::ssize(own) - first;
    std::vector<int64_t> slots(static_cast<size_t>(count));
    for (size_t g = 0; g < manager_.plan().groups.size(); ++g) {
      const int64_t page_size = manager_.plan().groups[g].layout.page_size;
      manager_.slots(sequence.pages, static_cast<int>(g), first, count, slots.data());
      for (int64_t i = 0; i < count; ++i) {
        const int64_t slot = slots[static_cast<size_t>(i)];
        memory_.at(static_cast<size_t>(slot / page_size)).at(static_cast<size_t>(slot % page_size)) =
            own[static_cast<size_t>(first + i)];
      }
    }
  }

  /// What the queries from `first` on see: in every group, every visible position holds this sequence's text.
  void read(const Live& sequence, int64_t first) {
    const std::vector<Text> own = texts(sequence);
    for (size_t g = 0; g < manager_.plan().groups.size(); ++g) {
      const CacheGroup& group = manager_.plan().groups[g];
      const int64_t visible = group.window == 0 ? 0 : std::max<int64_t>(0, first - group.window + 1);
      for (int64_t t = visible; t < std::ssize(own); ++t) {
        const int32_t page = sequence.pages.tables[g].at(static_cast<size_t>(t / group.layout.page_size));
        ASSERT_GE(page, 0) << "position " << t << " of group " << g;
        ASSERT_EQ(memory_.at(static_cast<size_t>(page)).at(static_cast<size_t>(t % group.layout.page_size)),
                  own[static_cast<size_t>(t)])
            << "position " << t << " of group " << g;
      }
    }
  }

  /// Used pages are those in the tables of live sequences, and no page serves two groups.
  void check_ownership() {
    std::map<int32_t, size_t> group_of;
    for (const Live& sequence : live_) {
      for (size_t g = 0; g < sequence.pages.tables.size(); ++g) {
        std::set<int32_t> own;
        for (const int32_t page : sequence.pages.tables[g]) {
          if (page < 0) continue;
          ASSERT_TRUE(own.insert(page).second) << "page " << page << " twice in a table";
          ASSERT_EQ(group_of.emplace(page, g).first->second, g) << "page " << page << " in two groups";
        }
      }
    }
    ASSERT_EQ(manager_.num_free_pages(), manager_.num_pages() - std::ssize(group_of));
  }

  KvManager manager_;
  bool ample_;
  Random random_;
  std::vector<std::vector<Text>> memory_;  // [page][offset]
  std::vector<Live> live_;
  std::set<Text> committed_;
  Counts counts_{};
};

const std::vector<std::vector<testing::Kind>> kModels{
    {{}},                                                      // all full
    {{.window = 20}, {}},                                      // equal pages
    {{.num_kv_heads = 2, .window = 17}, {.num_kv_heads = 1}},  // Gemma 4's shape: full pages twice as long
    {{.num_kv_heads = 1, .window = 40}, {.num_kv_heads = 4}},  // sliding pages four times as long
    {{.window = 1}, {.window = 33}, {}},                       // two windows
    {{.window = 20}},                                          // all sliding
};

TEST(KvManagerModel, ShortPools) {
  Model::Counts sum;
  for (size_t i = 0; i < kModels.size(); ++i) {
    for (const auto hash : {&hash_token_block, &colliding_hash}) {
      const CachePlan plan = plan_of(kModels[i]);
      Model model(plan, 3 + plan.blocks_for(200, 200), false, hash, 17 + i);
      model.run(2000);
      sum.hits += model.counts().hits;
      sum.copies += model.counts().copies;
      sum.refusals += model.counts().refusals;
    }
  }
  // The run met what it is here to test.
  EXPECT_GT(sum.hits, 100);
  EXPECT_GT(sum.copies, 100);
  EXPECT_GT(sum.refusals, 100);
}

TEST(KvManagerModel, AmplePoolsFindTheLongestPrefix) {
  for (size_t i = 0; i < kModels.size(); ++i) {
    Model model(plan_of(kModels[i]), 20000, true, hash_token_block, 99 + i);
    model.run(2000);
    EXPECT_GT(model.counts().hits, 10);
    EXPECT_EQ(model.counts().refusals, 0);
  }
}

}  // namespace
}  // namespace quaver
