// The tensor core of this GPU against tests/golden/fp8_accumulator_h200.txt: the emulation's model of the accumulator
// (src/core/accumulator.h) is tested against the same file on the CPU.
#include <gtest/gtest.h>

#include <bit>
#include <fstream>
#include <sstream>
#include <string>

#include "device_case.h"
#include "ptx/barrier.cuh"
#include "ptx/wgmma.cuh"

namespace quaver::testing {
namespace {

constexpr int kMaxDepth = 128;  // 4 instructions of K = 32

/// One chain a CTA: every row of A is the golden row, and so is every column of B.
struct Chain {
  uint8_t a[kMaxDepth];
  uint8_t b[kMaxDepth];
  float c;
  int depth;
};

/// D of one chain: K-major core matrices without swizzle, 8 rows x 16 bytes each.
__global__ void __launch_bounds__(128) run_chains(const Chain* chains, float* results) {
  __shared__ __align__(128) uint8_t a[64 * kMaxDepth];
  __shared__ __align__(128) uint8_t b[64 * kMaxDepth];
  const Chain& chain = chains[blockIdx.x];
  for (int i = static_cast<int>(threadIdx.x); i < 64 * kMaxDepth; i += 128) {
    const int k = (i / 128) % (kMaxDepth / 16) * 16 + i % 16;  // core matrix i / 128, byte i % 16 of a row
    a[i] = k < chain.depth ? chain.a[k] : uint8_t{0};
    b[i] = k < chain.depth ? chain.b[k] : uint8_t{0};
  }
  ptx::fence_proxy_async_shared();
  __syncthreads();
  float d[32];
#pragma unroll
  for (float& x : d) x = chain.c;
  for (int k = 0; k < chain.depth; k += 32) {
    const auto offset = static_cast<uint32_t>(k / 16 * 128);
    ptx::wgmma_fence();
    ptx::wgmma(d, ptx::matrix_descriptor(ptx::shared_address(a) + offset, 128, 8 * kMaxDepth),
               ptx::matrix_descriptor(ptx::shared_address(b) + offset, 128, 8 * kMaxDepth), true);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
  }
  bool same = true;  // all elements are the same sum
#pragma unroll
  for (const float x : d) same = same && __float_as_uint(x) == __float_as_uint(d[0]);
  const bool all_same = __syncthreads_and(static_cast<int>(same)) != 0;
  if (threadIdx.x == 0) results[blockIdx.x] = all_same ? d[0] : __uint_as_float(0x7FFFFFFFU);
}

float float_of_bits(const std::string& hex) {
  return std::bit_cast<float>(static_cast<uint32_t>(std::stoul(hex, nullptr, 16)));
}

TEST(Accumulator, GoldenFileReplays) {
  std::ifstream file(QUAVER_SOURCE_DIR "/tests/golden/fp8_accumulator_h200.txt");
  std::vector<Chain> chains;
  std::vector<float> expected;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#')) continue;
    std::istringstream words(line);
    std::string a;
    std::string b;
    std::string c;
    std::string d;
    words >> a >> b >> c >> d;
    Chain chain{.a = {}, .b = {}, .c = float_of_bits(c), .depth = static_cast<int>(a.size() / 2)};
    ASSERT_LE(chain.depth, kMaxDepth);
    for (size_t k = 0; k < a.size() / 2; ++k) {
      chain.a[k] = static_cast<uint8_t>(std::stoul(a.substr(2 * k, 2), nullptr, 16));
      chain.b[k] = static_cast<uint8_t>(std::stoul(b.substr(2 * k, 2), nullptr, 16));
    }
    chains.push_back(chain);
    expected.push_back(float_of_bits(d));
  }
  ASSERT_EQ(chains.size(), 192U);
  const DeviceBuffer<Chain> device = to_device(chains);
  const DeviceBuffer<float> results(std::ssize(chains));
  run_chains<<<static_cast<unsigned>(chains.size()), 128>>>(device.data(), results.data());
  check_cuda(cudaDeviceSynchronize(), "run_chains");
  const std::vector<float> got = to_host(results);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(expected[i])) << "line " << i;
  }
}

}  // namespace
}  // namespace quaver::testing
