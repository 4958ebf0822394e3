// Host time a step, by ratios within one run: absolute times belong to bench/scheduling.
#include <gtest/gtest.h>

#include "testing/scheduling_load.h"

namespace quaver {
namespace {

using testing::SchedulingLoad;
using testing::SchedulingTimes;

#ifdef __SANITIZE_ADDRESS__
constexpr double kMostCopies = 60;  // instrumented code against an uninstrumented memcpy
#else
constexpr double kMostCopies = 3;
#endif

// 128 running sequences: as fast at 9k tokens as at 1k, and no slower than 3 copies of the batch. From 128 to 1,024
// sequences the time grows with their number; a row may cost up to 2.5 times as much there, since the state of 1,024
// sequences no longer fits a core's L2 cache. Anything quadratic would be at 8 times. Least times settle within a few
// rounds; a busy machine gets more.
TEST(SchedulingOverhead, DoesNotDependOnTheContextAndGrowsWithSequences) {
  SchedulingLoad near(128, 1024);
  SchedulingLoad far(128, 9216);
  SchedulingLoad many(1024, 1024);
  SchedulingTimes near_times;
  SchedulingTimes far_times;
  SchedulingTimes many_times;
  const auto as_it_should_be = [&] {
    return far_times.step_s <= 1.2 * near_times.step_s && far_times.step_s <= kMostCopies * far_times.copy_s &&
           many_times.step_s <= 2.5 * (1024 / 128) * near_times.step_s;
  };
  for (int attempt = 0; attempt < 20 && !as_it_should_be(); ++attempt) {
    near_times.measure(near, 40, 2);
    far_times.measure(far, 40, 2);
    many_times.measure(many, 40, 2);
  }
  EXPECT_LE(far_times.step_s, 1.2 * near_times.step_s);
  EXPECT_LE(far_times.step_s, kMostCopies * far_times.copy_s);
  EXPECT_LE(many_times.step_s, 2.5 * (1024 / 128) * near_times.step_s);
}

// The shape that the issue names: 6 groups of 10 layers, pages of 128 and 64 tokens, no waste.
TEST(SchedulingOverhead, UsesTheGroupsOfGemma4) {
  const CachePlan plan = testing::gemma4_31b_plan();
  ASSERT_EQ(plan.groups.size(), 6U);
  EXPECT_EQ(plan.num_slabs, 10);
  EXPECT_EQ(plan.page_bytes, 524288);
  EXPECT_EQ(plan.wasted_page_bytes, 0);
  EXPECT_EQ(plan.groups[0].layout.page_size, 128);
  for (size_t g = 1; g < 6; ++g) EXPECT_EQ(plan.groups[g].layout.page_size, 64);
}

}  // namespace
}  // namespace quaver
