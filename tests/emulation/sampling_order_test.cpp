// What the sampling kernels draw does not depend on the order in which threads come to it. All else about them:
// ../gpu/sampling_test.cpp, which runs here too.
#include <gtest/gtest.h>

#include "../gpu/sampling_case.h"
#include "simt/launch.h"

namespace quaver::testing {
namespace {

TEST(DeviceSampling, AnyOrderOfThreads) {
  for (uint64_t seed = 100; seed < 106; ++seed) {
    const simt::RandomOrder order(seed);
    expect_same_random_requests(seed);
  }
}

}  // namespace
}  // namespace quaver::testing
