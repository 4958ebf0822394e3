// Kernels with one fault each: the emulated machine names it.
#include "cuda_runtime.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/cuda.h"
#include "core/e4m3.h"
#include "device_case.h"
#include "ptx/barrier.cuh"
#include "ptx/bulk_copy.cuh"
#include "ptx/wgmma.cuh"

namespace quaver::testing {

enum class Fault {
  kNone,
  kNoSyncthreads,       ///< one warp leaves it out
  kOtherCollective,     ///< a lane comes to __syncwarp() where the others shuffle
  kNoArrival,           ///< nobody arrives at the barrier that all wait for
  kTooManyArrivals,     //
  kExpectsTooMuch,      ///< more bytes than the copy brings
  kExpectsTooLittle,    //
  kPastDynamicShared,   ///< the copy ends behind the CTA's dynamic shared memory
  kPastAllocation,      ///< … begins before the end of the source and ends behind it
  kMisaligned,          //
  kAddressWithoutRank,  ///< in a cluster: names the first CTA, whoever uses it
  kNoWait,              ///< the copy has not landed when it is read
  kEndsBeforeCopy,      ///< nobody waits for it at all
  kNoInit,              //
  kTrap,
};

struct CopyParameters {
  const float* source = nullptr;
  float* out = nullptr;
  Fault fault = Fault::kNone;
};

constexpr int kValues = 64;
constexpr int kBytes = 4 * kValues;

/// 64 threads of each CTA copy 64 floats to shared memory and from there to `out`.
void copy_kernel(const CopyParameters p) {
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ uint64_t full;
  const auto is = [&](Fault fault) { return p.fault == fault; };
  const uint32_t barrier = ptx::shared_address(&full);
  uint32_t to = ptx::shared_address(memory);
  const float* from = p.source;
  int expected = kBytes;
  if (is(Fault::kPastDynamicShared)) to += 16;
  if (is(Fault::kPastAllocation)) from += 4;
  if (is(Fault::kMisaligned)) from += 1;
  if (is(Fault::kAddressWithoutRank)) to %= 1U << 24;
  if (is(Fault::kExpectsTooMuch)) expected += 16;
  if (is(Fault::kExpectsTooLittle)) expected -= 16;
  if (threadIdx.x == 0 && !is(Fault::kNoInit)) ptx::mbarrier_init(barrier, 1);
  if (!is(Fault::kNoSyncthreads) || threadIdx.x >= 32) __syncthreads();
  if (is(Fault::kTrap)) __trap();
  if (threadIdx.x == 0) {
    if (!is(Fault::kNoArrival)) ptx::mbarrier_arrive_expect(barrier, expected);
    if (is(Fault::kTooManyArrivals)) ptx::mbarrier_arrive(barrier);
    ptx::bulk_load(to, from, kBytes, barrier);
  }
  if (is(Fault::kOtherCollective)) {
    if (threadIdx.x == 5) {
      __syncwarp();
    } else {
      __shfl_sync(0xFFFFFFFFU, 1, 0);
    }
  }
  if (is(Fault::kEndsBeforeCopy)) return;
  if (!is(Fault::kNoWait)) ptx::mbarrier_wait(barrier, 0);
  p.out[threadIdx.x] = reinterpret_cast<const float*>(memory)[threadIdx.x];
  ptx::mbarrier_wait(barrier, 0);
}

namespace {

std::vector<float> copied(Fault fault, int cluster = 1) {
  std::vector<float> values(kValues);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const auto source = to_device(values);
  const DeviceBuffer<float> out(kValues);
  launch_programmatic(copy_kernel, dim3(static_cast<unsigned>(cluster)), kValues, kBytes, nullptr,
                      {.source = source.data(), .out = out.data(), .fault = fault}, cluster);
  return to_host(out);
}

void expect_found(Fault fault, std::initializer_list<const char*> parts, int cluster = 1) {
  try {
    static_cast<void>(copied(fault, cluster));
    ADD_FAILURE() << "no error; expected " << *parts.begin();
  } catch (const Error& error) {
    for (const char* part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what() << "\nlacks: " << part;
    }
  }
}

TEST(Faults, NoneIsFoundWhereNoneIs) {
  for (const int cluster : {1, 2, 4}) EXPECT_EQ(copied(Fault::kNone, cluster)[63], 63.0F);
}

TEST(Faults, WaitsThatNeverEnd) {
  expect_found(Fault::kNoSyncthreads, {"deadlock", "warp 1, 32 lanes from lane 0: __syncthreads"});
  expect_found(Fault::kNoArrival, {"deadlock", "mbarrier at static", "wants 1 of 1 arrivals and -256 bytes"});
  expect_found(Fault::kExpectsTooMuch, {"deadlock", "wants 0 of 1 arrivals and 16 bytes"});
}

TEST(Faults, BarriersAndCollectives) {
  expect_found(Fault::kTooManyArrivals, {"thread 0", "expected no more than 1 arrivals"});
  expect_found(Fault::kExpectsTooLittle, {"wants 0 of 1 arrivals and -16 bytes"});
  expect_found(Fault::kNoInit, {"mbarrier at static", "expected an initialised one"});
  expect_found(Fault::kOtherCollective, {"thread 5 (warp 0 lane 5)", "__syncwarp: expected __shfl_sync"});
  expect_found(Fault::kTrap, {"CTA (0, 0, 0) thread", "__trap()"});
}

TEST(Faults, BulkCopies) {
  expect_found(Fault::kPastDynamicShared, {"256 bytes to dynamic + 16", "expected inside the 256 bytes"});
  expect_found(Fault::kPastAllocation, {"bulk copy of 256 bytes", "expected a source inside one allocation"});
  expect_found(Fault::kMisaligned, {"expected multiples of 16"});
  expect_found(Fault::kEndsBeforeCopy, {"has ended", "copy of 256 bytes"});
  EXPECT_EQ(copied(Fault::kAddressWithoutRank)[63], 63.0F);
  expect_found(Fault::kAddressWithoutRank,
               {"CTA (1, 0, 0)", "shared memory of CTA 0 of the cluster: expected this one, 1"}, 2);
}

TEST(Faults, MemoryThatHasNotBeenWrittenIsNan) {
  for (const float value : copied(Fault::kNoWait)) EXPECT_TRUE(std::isnan(value));
}

}  // namespace

enum class ProductFault { kNone, kNoWait, kSlotGivenUpEarly };

struct ProductParameters {
  float* out = nullptr;  ///< [64][8]
  ProductFault fault = ProductFault::kNone;
};

/// One warpgroup: D = A B^T of ones, K = 32.
void product_kernel(const ProductParameters p) {
  extern __shared__ __align__(128) uint8_t memory[];
  constexpr int kOperandBytes = (64 + 8) * 32;
  const auto thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < kOperandBytes; i += 128) memory[i] = e4m3_encode(1.0F);
  ptx::fence_proxy_async_shared();
  __syncthreads();
  const uint32_t a = ptx::shared_address(memory);
  float d[4] = {};
  ptx::wgmma_fence();
  ptx::wgmma(d, ptx::matrix_descriptor(a, 128, 256), ptx::matrix_descriptor(a + 64 * 32, 128, 256), false);
  ptx::wgmma_commit();
  if (p.fault == ProductFault::kSlotGivenUpEarly) memory[thread] = kE4M3Nan;
  if (p.fault != ProductFault::kNoWait) ptx::wgmma_wait<0>();
  const int row = thread / 32 * 16 + thread % 32 / 4;
  for (int i = 0; i < 4; ++i) p.out[(row + i / 2 * 8) * 8 + thread % 4 * 2 + i % 2] = d[i];
  if (p.fault == ProductFault::kNoWait) ptx::wgmma_wait<0>();
}

namespace {

std::vector<float> product(ProductFault fault) {
  const DeviceBuffer<float> out(64 * 8);
  launch(product_kernel, dim3(1), 128, 4096, nullptr, {.out = out.data(), .fault = fault});
  return to_host(out);
}

TEST(Faults, Products) {
  for (const float x : product(ProductFault::kNone)) EXPECT_EQ(x, 32.0F);
  for (const float x : product(ProductFault::kNoWait)) EXPECT_EQ(x, 0.0F);
  EXPECT_TRUE(std::isnan(product(ProductFault::kSlotGivenUpEarly)[0]));
}

}  // namespace
}  // namespace quaver::testing
