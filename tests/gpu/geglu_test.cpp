// The product with the gate of an MLP behind it, on the GPU: every kind of plan, graphs, and the quantisation behind
// it.
#include "geglu_case.h"

#include <set>

#include "ops/cuda/device_ops.h"
#include "ops_input.h"
#include "testing/expect_error.h"

namespace quaver::testing {
namespace {

using packed_fp8::GemmPlan;
using packed_fp8::MaxClusters;
using packed_fp8::Output;

constexpr MaxClusters kSmallDevice{0, 5, 3, 2, 1};  // makes every CTA take several tiles
constexpr MaxClusters kH200{0, 132, 66, 39, 30};

GemmSpec spec(int64_t m, int64_t n, int64_t k, GemmData data = GemmData::kIntegers) {
  return {.shape = {.m = m, .n = n, .k = k}, .data = data, .output = Output::kGeglu};
}

TEST(Geglu, AnyShape) {
  std::set<std::pair<int, int>> plans;  // (CTAs a cluster, token tile)
  for (const int64_t m : {1, 7, 8, 13, 31, 60, 77, 128, 129, 200, 500}) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{16, 1}, {272, 300}, {1008, 1111}, {4112, 640}}) {
      GemmCase test(spec(m, n, k));
      const std::vector<double> expected = test.expected_geglu();
      expect_geglu(test, test.plan(), expected, 8);
      for (const MaxClusters& device : {kSmallDevice, kH200}) {
        for (const GemmPlan& plan : possible_plans(test.spec().shape, test.spec().scaling, device, Output::kGeglu)) {
          plans.emplace(plan.grid.cluster(), plan.grid.token_tile);
          expect_geglu(test, plan, expected);
        }
      }
    }
  }
  EXPECT_GE(plans.size(), 15U);  // the shapes reach most kernels
}

TEST(Geglu, LayerOfGemma4) {
  for (const auto& [m, n] : {std::pair<int64_t, int64_t>{1, 43008}, {128, 43008}, {200, 5376}}) {
    GemmCase test(spec(m, n, 5376));
    expect_geglu(test, test.plan(), test.expected_geglu());
  }
}

TEST(Geglu, NanStaysInItsTokenAndRow) {
  for (const int64_t m : {21, 150}) {
    GemmCase test(spec(m, 1008, 515));
    expect_geglu_nan_stays(test, test.plan());
  }
}

// Behind the kernel that packs its tokens and in front of the quantisation, in a graph, again and again.
TEST(Geglu, RepeatsBitForBitInGraphs) {
  for (const int64_t m : {1, 7, 128, 200, 1500}) {
    GemmCase test(spec(m, 4096, 1024, GemmData::kNormal));
    const int64_t inner = test.spec().shape.n / 2;
    const std::vector<float> expected = test.run_geglu(test.plan(), nullptr);
    const auto rows = poisoned<Bf16>(m * inner);
    const InputBuffer codes({.kind = InputKind::kPerToken, .tokens = m, .columns = inner});
    const TensorView out(rows.data(), DType::kBF16, {m, inner}, {.kind = Device::Kind::kCuda, .index = 0});
    const CudaStream stream = make_stream();
    const CudaGraphExec graph = capture_graph(stream.get(), [&](cudaStream_t s) {
      for (int step = 0; step < 3; ++step) {
        test.pack_tokens(s);
        device_gemm().run_geglu(test.weight(), test.tokens(), out, device_workspace(), s);
        device_ops::quantize({.rows = rows.data(), .num_tokens = m, .width = inner, .out = codes.view()}, s);
      }
    });
    for (int launch = 0; launch < 3; ++launch) {
      check_cuda(cudaMemset(rows.data(), 0xFF, rows.bytes()), "cudaMemset");
      check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
      check_cuda(cudaGraphLaunch(graph.get(), stream.get()), "cudaGraphLaunch");
      check_cuda(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
      EXPECT_TRUE(std::ranges::equal(to_host(rows), expected, {}, [](Bf16 value) { return to_float(value); }));
      expect_cpu_codes(codes, codes.bytes(), expected);
    }
  }
}

TEST(Geglu, RefusesByName) {
  const auto refused = [](const GemmSpec& wrong, const TensorView& out, std::initializer_list<std::string_view> parts) {
    const GemmCase test(wrong);
    expect_error([&] { device_gemm().run_geglu(test.weight(), test.tokens(), out, device_workspace(), nullptr); },
                 ErrorKind::kInvalidArgument, parts);
  };
  const DeviceBuffer<float> memory(1024);
  const Device gpu{.kind = Device::Kind::kCuda, .index = 0};
  const TensorView good(memory.data(), DType::kBF16, {4, 16}, gpu);
  TensorView out = good;
  out.dtype = DType::kF32;
  refused(spec(4, 32, 64), out, {"out", "bf16"});
  refused(spec(4, 64, 64), good, {"out", "[4, 32]"});
  GemmSpec uneven = spec(4, 40, 64);
  uneven.output = Output::kRows;
  refused(uneven, good, {"out features 40", "multiple of 16"});
  GemmSpec blocks = spec(4, 32, 64);
  blocks.output = Output::kRows;
  blocks.scaling = packed_fp8::Scaling::kBlock;
  refused(blocks, good, {"weight of 32 rows", "scale per row"});
}

}  // namespace
}  // namespace quaver::testing
