// Page ids: reference counts and the order in which free pages are handed out.
#include <gtest/gtest.h>

#include <limits>
#include <list>
#include <map>

#include "quaver/kv_cache.h"
#include "testing/random.h"

namespace quaver {
namespace {

TEST(PagePool, HandsOutAscendingIdsThenTheLongestFree) {
  PagePool pool(4);
  for (int32_t page = 0; page < 4; ++page) EXPECT_EQ(pool.allocate(), page);
  EXPECT_EQ(pool.num_free(), 0);
  pool.release(2);
  pool.release(0);
  pool.release(3);
  EXPECT_EQ(pool.num_free(), 3);
  EXPECT_EQ(pool.allocate(), 2);
  EXPECT_EQ(pool.allocate(), 0);
  EXPECT_EQ(pool.allocate(), 3);
}

TEST(PagePool, CountsOwners) {
  PagePool pool(2);
  const int32_t page = pool.allocate();
  pool.retain(page);
  EXPECT_EQ(pool.reference_count(page), 2);
  pool.release(page);
  EXPECT_EQ(pool.num_free(), 1);
  pool.release(page);
  EXPECT_EQ(pool.num_free(), 2);
  EXPECT_EQ(pool.reference_count(page), 0);
}

TEST(PagePool, RetainingAFreePageTakesItOutOfTheQueue) {
  PagePool pool(3);
  pool.retain(1);
  EXPECT_EQ(pool.num_free(), 2);
  EXPECT_EQ(pool.allocate(), 0);
  EXPECT_EQ(pool.allocate(), 2);
  EXPECT_THROW((void)pool.allocate(), Error);
}

/// Runs `call` and returns kind and message of its Error.
template <class Call>
std::pair<ErrorKind, std::string> refusal(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return {error.kind(), error.what()};
  }
  return {ErrorKind::kInternal, "accepted"};
}

TEST(PagePool, RefusesWhatCannotBe) {
  PagePool pool(2);
  const std::pair free_page{ErrorKind::kInvalidArgument, std::string("page 1: expected a page in use, not a free one")};
  EXPECT_EQ(refusal([&] { pool.release(1); }), free_page);
  for (const int32_t page : {-1, 2, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()}) {
    const std::pair expected{ErrorKind::kInvalidArgument, "page " + std::to_string(page) + ": expected 0 to 1"};
    EXPECT_EQ(refusal([&] { pool.release(page); }), expected);
    EXPECT_EQ(refusal([&] { pool.retain(page); }), expected);
    EXPECT_EQ(refusal([&] { (void)pool.reference_count(page); }), expected);
  }
  (void)pool.allocate();
  (void)pool.allocate();
  const std::pair empty{ErrorKind::kOutOfMemory, std::string("free pages 0: expected at least 1 of 2")};
  EXPECT_EQ(refusal([&] { (void)pool.allocate(); }), empty);
  EXPECT_THROW(PagePool(-1), Error);
  EXPECT_THROW(PagePool(int64_t{1} << 31), Error);
  EXPECT_THROW((void)PagePool(0).allocate(), Error);
}

TEST(PagePool, AgreesWithAListOverRandomOperations) {
  constexpr int32_t kPages = 23;
  PagePool pool(kPages);
  std::list<int32_t> queue;
  for (int32_t page = 0; page < kPages; ++page) queue.push_back(page);
  std::map<int32_t, int> owners;
  testing::Random random(5);
  for (int step = 0; step < 20000; ++step) {
    const auto page = static_cast<int32_t>(random.below(kPages));
    switch (random.below(3)) {
      case 0:
        if (queue.empty()) break;
        ASSERT_EQ(pool.allocate(), queue.front());
        owners[queue.front()] = 1;
        queue.pop_front();
        break;
      case 1:
        pool.retain(page);
        if (owners[page]++ == 0) queue.remove(page);
        break;
      default:
        if (owners[page] == 0) break;
        pool.release(page);
        if (--owners[page] == 0) queue.push_back(page);
    }
    ASSERT_EQ(pool.num_free(), std::ssize(queue));
    ASSERT_EQ(pool.reference_count(page), owners[page]);
  }
}

}  // namespace
}  // namespace quaver
