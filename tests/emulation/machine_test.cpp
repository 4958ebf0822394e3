// The emulated machine itself: what it computes, and which faults of a kernel it finds.
#include "cuda_runtime.h"

#include <gtest/gtest.h>

#include <numeric>

#include "core/cuda.h"
#include "device_case.h"
#include "ptx/barrier.cuh"
#include "ptx/bulk_copy.cuh"
#include "simt/launch.h"
#include "testing/expect_error.h"

namespace quaver::testing {
namespace {

struct SumParameters {
  const int* values = nullptr;
  int* sum = nullptr;
  int count = 0;
  bool barrier = true;
};

/// Sum of a CTA's values through shared memory.
void sum_kernel(const SumParameters p) {
  __shared__ int sums[8];
  const auto thread = static_cast<int>(threadIdx.x);
  int own = 0;
  for (int i = thread; i < p.count; i += static_cast<int>(blockDim.x)) own += p.values[i];
  for (int step = 16; step > 0; step /= 2) own += __shfl_xor_sync(0xFFFFFFFFU, own, step);
  if (thread % 32 == 0) sums[thread / 32] = own;
  if (p.barrier) __syncthreads();
  if (thread != 0) return;
  int sum = 0;
  for (int warp = 0; warp < 8; ++warp) sum += sums[warp];
  p.sum[blockIdx.x] = sum;
}

int run_sum(bool barrier) {
  std::vector<int> values(1000);
  std::iota(values.begin(), values.end(), 1);
  const auto device_values = to_device(values);
  const DeviceBuffer<int> sum(1);
  launch(sum_kernel, dim3(1), 256, 0, nullptr,
         {.values = device_values.data(), .sum = sum.data(), .count = 1000, .barrier = barrier});
  return to_host(sum)[0];
}

TEST(Machine, SumsThroughShufflesAndSharedMemory) {
  EXPECT_EQ(run_sum(true), 500500);
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const simt::RandomOrder order(seed);
    EXPECT_EQ(run_sum(true), 500500);
  }
}

TEST(Machine, MissingSyncthreadsReadsPoison) {
  EXPECT_NE(run_sum(false), 500500);
}

}  // namespace
}  // namespace quaver::testing
