// The packed FP8 GEMM in graphs, on several streams, and behind the kernels that write its operands.
#include <gtest/gtest.h>

#include <cstring>

#include "gemm_case.h"

namespace quaver::testing {
namespace {

using packed_fp8::GemmPlan;
using packed_fp8::Scaling;

const Device kGpu{.kind = Device::Kind::kCuda, .index = 0};

/// Output memory of one product that is launched many times.
class Outputs32 {
 public:
  explicit Outputs32(const GemmCase& test)
      : buffer_(test.spec().shape.m * test.spec().shape.n),
        view(buffer_.data(), DType::kF32, {test.spec().shape.m, test.spec().shape.n}, kGpu) {}

  void poison() {
    check_cuda(cudaMemset(buffer_.data(), 0xFF, buffer_.bytes()), "cudaMemset");
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  [[nodiscard]] bool equals(const GemmOutput& expected) const {
    const std::vector<float> values = to_host(buffer_);
    return std::memcmp(values.data(), expected.bits.data(), buffer_.bytes()) == 0;
  }

 private:
  DeviceBuffer<float> buffer_;

 public:
  TensorView view;
};

/// One case per kind of plan: rows alone, K in parts, K in parts over several tiles, shared tokens, block scales.
std::vector<GemmCase> cases() {
  std::vector<GemmCase> all;
  all.emplace_back(GemmSpec{.shape = {.m = 16, .n = 16384, .k = 512}, .data = GemmData::kNormal});
  all.emplace_back(GemmSpec{.shape = {.m = 128, .n = 2688, .k = 4096}, .data = GemmData::kNormal});
  all.emplace_back(GemmSpec{.shape = {.m = 100, .n = 18432, .k = 2688}, .data = GemmData::kNormal});
  all.emplace_back(GemmSpec{.shape = {.m = 700, .n = 4000, .k = 1024}, .data = GemmData::kNormal});
  all.emplace_back(
      GemmSpec{.shape = {.m = 60, .n = 3000, .k = 4096}, .scaling = Scaling::kBlock, .data = GemmData::kNormal});
  return all;
}

GemmPlan plan_of(const GemmCase& test) {
  return device_gemm().plan(test.spec().shape, test.spec().scaling);
}

TEST(PackedGemmStream, RepeatsBitForBit) {
  for (GemmCase& test : cases()) {
    SCOPED_TRACE(to_string(plan_of(test)));
    const GemmOutput first = test.run(plan_of(test), DType::kBF16, nullptr);
    for (int repeat = 0; repeat < 5; ++repeat) {
      EXPECT_TRUE(test.run(plan_of(test), DType::kBF16, nullptr).bits == first.bits);
    }
  }
}

/// Products in a row start while the one before still runs; a graph keeps that.
TEST(PackedGemmStream, GraphOfProductsInARow) {
  std::vector<GemmCase> all = cases();
  const CudaStream stream = make_stream();
  std::vector<GemmOutput> expected;
  std::vector<std::unique_ptr<Outputs32>> outputs;
  for (GemmCase& test : all) {
    expected.push_back(test.run(plan_of(test), DType::kF32, stream.get()));
    outputs.push_back(std::make_unique<Outputs32>(test));
  }
  const CudaGraphExec graph = capture_graph(stream.get(), [&](cudaStream_t s) {
    for (int round = 0; round < 3; ++round) {
      for (size_t i = 0; i < all.size(); ++i)
        device_gemm().run(all[i].weight(), all[i].tokens(), outputs[i]->view, device_workspace(), s);
    }
  });
  for (int replay = 0; replay < 10; ++replay) {
    for (const auto& output : outputs) output->poison();
    check_cuda(cudaGraphLaunch(graph.get(), stream.get()), "cudaGraphLaunch");
    check_cuda(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
    for (size_t i = 0; i < all.size(); ++i) EXPECT_TRUE(outputs[i]->equals(expected[i])) << "case " << i;
  }
}

/// More CTAs than the device holds, from two streams: nobody may wait for a CTA that has not started.
TEST(PackedGemmStream, TwoAtOnce) {
  std::vector<GemmCase> all = cases();
  const CudaStream streams[2] = {make_stream(), make_stream()};
  const packed_fp8::Workspace workspaces[2];
  std::vector<GemmOutput> expected;
  std::vector<std::unique_ptr<Outputs32>> outputs;
  for (GemmCase& test : all) {
    expected.push_back(test.run(plan_of(test), DType::kF32, nullptr));
    outputs.push_back(std::make_unique<Outputs32>(test));
  }
  for (int repeat = 0; repeat < 20; ++repeat) {
    for (const auto& output : outputs) output->poison();
    for (size_t i = 0; i < all.size(); ++i) {
      device_gemm().run(all[i].weight(), all[i].tokens(), outputs[i]->view, workspaces[i % 2], streams[i % 2].get());
    }
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    for (size_t i = 0; i < all.size(); ++i) ASSERT_TRUE(outputs[i]->equals(expected[i])) << "case " << i;
  }
}

/// The tokens are written by the kernel right in front, without synchronisation.
TEST(PackedGemmStream, WaitsForTheTokens) {
  for (GemmCase& test : cases()) {
    SCOPED_TRACE(to_string(plan_of(test)));
    const CudaStream stream = make_stream();
    const GemmOutput expected = test.run(plan_of(test), DType::kF32, stream.get());
    Outputs32 output(test);
    const auto bytes = static_cast<size_t>(packed_fp8::packed_bytes(test.spec().shape.m, test.spec().shape.k));
    for (int repeat = 0; repeat < 5; ++repeat) {
      output.poison();
      check_cuda(cudaMemsetAsync(const_cast<uint8_t*>(test.tokens().packed), 0x7F, bytes, stream.get()), "cudaMemset");
      test.pack_tokens(stream.get());
      device_gemm().run(test.weight(), test.tokens(), output.view, device_workspace(), stream.get());
      check_cuda(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
      EXPECT_TRUE(output.equals(expected));
    }
  }
}

}  // namespace
}  // namespace quaver::testing
