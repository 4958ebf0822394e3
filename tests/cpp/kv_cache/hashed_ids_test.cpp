#include "kv_cache/hashed_ids.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "testing/random.h"

namespace quaver {
namespace {

/// All ids under a hash, through a predicate that accepts none.
std::multiset<uint64_t> all(const HashedIds& ids, uint64_t hash) {
  std::multiset<uint64_t> found;
  EXPECT_EQ(ids.find(hash,
                     [&](uint64_t id) {
                       found.insert(id);
                       return false;
                     }),
            0U);
  return found;
}

TEST(HashedIds, Empty) {
  HashedIds ids;
  EXPECT_TRUE(all(ids, 0).empty());
  ids.add(0, 1);
  EXPECT_EQ(all(ids, 0), (std::multiset<uint64_t>{1}));
  EXPECT_EQ(ids.find(0, [](uint64_t id) { return id == 1; }), 1U);
  EXPECT_TRUE(all(ids, 1).empty());
  ids.remove(0, 1);
  EXPECT_TRUE(all(ids, 0).empty());
  ids.add(7, 2);
  ids.clear();
  EXPECT_TRUE(all(ids, 7).empty());
}

// 20,000 additions and removals at every number of hashes: one for all, few with many ids each, and one for each id.
// Entries wrap around the end of the array, and a removal closes its gap.
TEST(HashedIds, IsAMultimap) {
  for (const int64_t num_hashes : {1, 2, 7, 50, 1 << 30}) {
    testing::Random random(static_cast<uint64_t>(num_hashes));
    HashedIds ids;
    std::map<uint64_t, uint64_t> expected;  // id → hash
    uint64_t last_id = 0;
    for (int step = 0; step < 20000; ++step) {
      const bool grows = step / 500 % 2 == 0;
      if (expected.empty() || random.below(10) < (grows ? 6 : 4)) {
        const auto hash = static_cast<uint64_t>(random.below(num_hashes)) << 32;
        ids.add(hash, ++last_id);
        expected[last_id] = hash;
      } else {
        auto entry = expected.lower_bound(1 + static_cast<uint64_t>(random.below(static_cast<int64_t>(last_id))));
        if (entry == expected.end()) entry = expected.begin();
        ids.remove(entry->second, entry->first);
        expected.erase(entry);
      }
      if (step % 500 != 0) continue;
      std::map<uint64_t, std::multiset<uint64_t>> by_hash;
      for (const auto& [id, hash] : expected) by_hash[hash].insert(id);
      for (const auto& [hash, of_hash] : by_hash) ASSERT_EQ(all(ids, hash), of_hash) << num_hashes << " " << step;
    }
  }
}

}  // namespace
}  // namespace quaver
