// One linear layer on the GPU: BF16 through cuBLASLt against exact sums, FP8 through the packed kernel.
#include "gemm/device_linear.h"

#include <gtest/gtest.h>

#include <cstring>

#include "device_input.h"
#include "gemm_case.h"
#include "testing/expect_error.h"
#include "testing/random.h"

namespace quaver::testing {
namespace {

constexpr Device kGpu{.kind = Device::Kind::kCuda, .index = 0};

DeviceGemm& kernels() {
  static DeviceGemm gemm(query_device(0));
  return gemm;
}

/// -2 … 2: every sum is exact in FP32.
std::vector<float> integers(int64_t count, uint64_t seed) {
  Random random(seed);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(random.below(5) - 2);
  return values;
}

DeviceBuffer<Bf16> bf16_rows(const std::vector<float>& values) {
  std::vector<Bf16> narrow(values.size());
  std::ranges::transform(values, narrow.begin(), to_bf16);
  return to_device(narrow);
}

/// A BF16 product with integers; outputs are poisoned before each run.
class Bf16Case {
 public:
  Bf16Case(int64_t m, int64_t n, int64_t k, uint64_t seed)
      : m_(m),
        n_(n),
        k_(k),
        x_(integers(m * k, seed)),
        w_(integers(n * k, seed + 1)),
        weight_(bf16_rows(w_)),
        input_(InputKind::kBf16, x_, m, k) {}

  [[nodiscard]] DeviceLinear linear() const {
    return {kernels(), {.format = WeightFormat::kBf16, .n = n_, .k = k_, .data = weight_.data()}};
  }

  /// Rows are `stride` elements apart; returns the whole buffer.
  std::vector<uint8_t> run(DType dtype, int64_t stride, cudaStream_t stream) {
    DeviceBuffer<uint8_t> buffer(m_ * stride * dtype_bytes(dtype));
    check_cuda(cudaMemset(buffer.data(), 0xFF, buffer.bytes()), "cudaMemset");
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    TensorView out(buffer.data(), dtype, {m_, n_}, kGpu);
    out.strides[0] = stride;
    linear().run(input_.input(), m_, out, stream);
    check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    return to_host(buffer);
  }

  [[nodiscard]] float expected(int64_t row, int64_t column) const {
    float sum = 0.0F;
    for (int64_t i = 0; i < k_; ++i) {
      sum += x_[static_cast<size_t>(row * k_ + i)] * w_[static_cast<size_t>(column * k_ + i)];
    }
    return sum;
  }

  void expect_exact(DType dtype, int64_t stride) {
    const std::vector<uint8_t> bytes = run(dtype, stride, nullptr);
    int wrong = 0;
    for (int64_t row = 0; row < m_; ++row) {
      for (int64_t column = 0; column < stride; ++column) {
        const uint8_t* from = bytes.data() + (row * stride + column) * dtype_bytes(dtype);
        if (column >= n_) {
          wrong += std::any_of(from, from + dtype_bytes(dtype), [](uint8_t byte) { return byte != 0xFF; }) ? 1 : 0;
        } else if (dtype == DType::kF32) {
          const float exact = expected(row, column);
          wrong += std::memcmp(from, &exact, sizeof exact) == 0 || exact == 0.0F ? 0 : 1;
        } else {
          const Bf16 exact = to_bf16(expected(row, column));
          wrong += std::memcmp(from, &exact, sizeof exact) == 0 || to_float(exact) == 0.0F ? 0 : 1;
        }
      }
    }
    EXPECT_EQ(wrong, 0) << dtype_name(dtype) << " m " << m_ << ", n " << n_ << ", k " << k_;
  }

 private:
  int64_t m_, n_, k_;
  std::vector<float> x_, w_;
  DeviceBuffer<Bf16> weight_;
  DeviceInput input_;
};

TEST(DeviceLinearBf16, ExactOnIntegers) {
  for (const int64_t m : {1, 2, 7, 16, 33, 128}) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{8, 8}, {61, 33}, {200, 640}, {97, 160}}) {
      Bf16Case test(m, n, k, static_cast<uint64_t>(m));
      test.expect_exact(DType::kF32, n);
      test.expect_exact(DType::kBF16, n);
      test.expect_exact(DType::kF32, (n + 11) / 4 * 4);
    }
  }
}

TEST(DeviceLinearBf16, RepeatsBitForBitAndInGraphs) {
  Bf16Case test(33, 512, 640, 5);
  const CudaStream stream = make_stream();
  const std::vector<uint8_t> first = test.run(DType::kBF16, 512, stream.get());
  EXPECT_EQ(test.run(DType::kBF16, 512, stream.get()), first);
  const DeviceLinear linear = test.linear();
  const DeviceInput input(InputKind::kBf16, integers(33 * 640, 5), 33, 640);
  DeviceBuffer<uint8_t> buffer(33 * 512 * 2);
  const TensorView out(buffer.data(), DType::kBF16, {33, 512}, kGpu);
  const CudaGraphExec graph =
      capture_graph(stream.get(), [&](cudaStream_t s) { linear.run(input.input(), 33, out, s); });
  for (int launch = 0; launch < 3; ++launch) {
    check_cuda(cudaMemset(buffer.data(), 0xFF, buffer.bytes()), "cudaMemset");
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    check_cuda(cudaGraphLaunch(graph.get(), stream.get()), "cudaGraphLaunch");
    check_cuda(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
    EXPECT_EQ(to_host(buffer), first);
  }
}

// The packed kernel's own bits, with a scale per token, one for all, and blocks.
TEST(DeviceLinearFp8, IsThePackedProduct) {
  struct Kind {
    packed_fp8::Scaling scaling;
    bool one_token_scale;
    WeightFormat format;
    InputKind input;
  };
  using packed_fp8::Scaling;
  for (const Kind& kind : {Kind{Scaling::kOuter, false, WeightFormat::kOuter, InputKind::kPerToken},
                           Kind{Scaling::kOuter, true, WeightFormat::kOuter, InputKind::kStatic},
                           Kind{Scaling::kBlock, false, WeightFormat::kBlock, InputKind::kPerBlock}}) {
    GemmCase test({.shape = {.m = 13, .n = 136, .k = 300},
                   .scaling = kind.scaling,
                   .data = GemmData::kNormal,
                   .one_token_scale = kind.one_token_scale});
    const GemmOutput expected = test.run(device_gemm().plan(test.spec().shape, kind.scaling), DType::kF32, nullptr);
    const auto weight = test.weight();
    const auto tokens = test.tokens();
    const DeviceLinear linear(kernels(), {.format = kind.format,
                                          .n = weight.n,
                                          .k = weight.k,
                                          .data = weight.packed,
                                          .scales = weight.scales,
                                          .input = kind.input});
    EXPECT_EQ(linear.input_kind(), kind.input);
    DeviceBuffer<float> out(13 * 136);
    const GemmInput input{.packed = const_cast<uint8_t*>(tokens.packed),
                          .scales = const_cast<float*>(tokens.scales),
                          .scale_stride = tokens.scale_stride,
                          .kind = kind.input};
    linear.run(input, 13, TensorView(out.data(), DType::kF32, {13, 136}, kGpu), nullptr);
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    EXPECT_EQ(to_host(out), expected.values);
  }
}

// The kernel's own bits again, through the interface of weights.
TEST(DeviceLinearFp8, GatedIsTheProductWithItsGate) {
  GemmCase test(
      {.shape = {.m = 13, .n = 144, .k = 300}, .data = GemmData::kNormal, .output = packed_fp8::Output::kGeglu});
  const std::vector<float> expected = test.run_geglu(test.plan(), nullptr);
  const auto weight = test.weight();
  DeviceMatrix matrix{.format = WeightFormat::kOuter,
                      .n = weight.n,
                      .k = weight.k,
                      .data = weight.packed,
                      .scales = weight.scales,
                      .input = InputKind::kPerToken,
                      .gated = true};
  const DeviceBuffer<Bf16> rows(13 * 72);
  const GemmInput input{.packed = const_cast<uint8_t*>(test.tokens().packed),
                        .scales = const_cast<float*>(test.tokens().scales),
                        .kind = InputKind::kPerToken};
  const TensorView out(rows.data(), DType::kBF16, {13, 72}, kGpu);
  DeviceLinear(kernels(), matrix).run_geglu(input, 13, out, nullptr);
  check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  EXPECT_TRUE(std::ranges::equal(to_host(rows), expected, {}, [](Bf16 value) { return to_float(value); }));
  matrix.gated = false;
  expect_error([&] { DeviceLinear(kernels(), matrix).run_geglu(input, 13, out, nullptr); }, ErrorKind::kInvalidArgument,
               {"gate and up take turns"});
  matrix.gated = true;
  matrix.n = 136;
  expect_error([&] { DeviceLinear(kernels(), matrix); }, ErrorKind::kInvalidArgument, {"136 rows", "multiple of 16"});
}

/// Outputs of the first m tokens, F32: in fixed order rows up to the next block of 128 exist too.
std::vector<float> first_rows(const DeviceLinear& linear, const GemmInput& input, int64_t m) {
  const DeviceBuffer<float> out(packed_fp8::ceil_divide(m, kFixedOrderRows) * kFixedOrderRows * linear.out_features());
  linear.run(input, m, TensorView(out.data(), DType::kF32, {m, linear.out_features()}, kGpu), nullptr);
  check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  std::vector<float> values = to_host(out);
  values.resize(static_cast<size_t>(m * linear.out_features()));
  return values;
}

// Rows of K with several promotions, in tiles of every kind: a token has the same bits among any number of others.
TEST(DeviceLinearFixedOrder, TokensDoNotDependOnTheirNumber) {
  DeviceGemm gemm(query_device(0));
  gemm.order = packed_fp8::SumOrder::kFixed;
  struct Kind {
    WeightFormat format;
    InputKind input;
    packed_fp8::Scaling scaling = packed_fp8::Scaling::kOuter;
    int64_t n = 1504;
    std::vector<int64_t> counts{384, 1, 9, 33, 128, 129, 200};  // of tokens, all of them first
  };
  for (const Kind& kind :  // emulation compiles one tile with block scales
       {Kind{WeightFormat::kOuter, InputKind::kPerToken}, Kind{WeightFormat::kOuter, InputKind::kStatic, {}, 509},
        Kind{WeightFormat::kBlock, InputKind::kPerBlock, packed_fp8::Scaling::kBlock, 200, {16, 9, 13}}}) {
    GemmCase test({.shape = {.m = kind.counts.front(), .n = kind.n, .k = 2500},
                   .scaling = kind.scaling,
                   .data = GemmData::kNormal,
                   .one_token_scale = kind.input == InputKind::kStatic});
    const DeviceLinear linear(gemm, {.format = kind.format,
                                     .n = kind.n,
                                     .k = 2500,
                                     .data = test.weight().packed,
                                     .scales = test.weight().scales,
                                     .input = kind.input});
    const GemmInput input{.packed = const_cast<uint8_t*>(test.tokens().packed),
                          .scales = const_cast<float*>(test.tokens().scales),
                          .scale_stride = test.tokens().scale_stride,
                          .kind = kind.input};
    const std::vector<float> all = first_rows(linear, input, kind.counts.front());
    for (const int64_t m : kind.counts) {
      const std::vector<float> some = first_rows(linear, input, m);
      EXPECT_TRUE(std::ranges::equal(some, std::span(all).first(some.size())))
          << "input kind " << static_cast<int>(kind.input) << ", m " << m;
    }
  }
}

TEST(DeviceLinearLimits, RefusedByName) {
  const DeviceBuffer<Bf16> weight(64);
  const auto refused = [](const auto& call, std::initializer_list<std::string_view> parts) {
    expect_error(call, ErrorKind::kInvalidArgument, parts);
  };
  const DeviceMatrix matrix{.format = WeightFormat::kBf16, .n = 8, .k = 8, .data = weight.data()};
  refused([&] { DeviceLinear(kernels(), {.format = WeightFormat::kBf16, .n = 8, .k = 8}); }, {"device weight [8, 8]"});
  DeviceMatrix other = matrix;
  other.input = InputKind::kPerToken;
  refused([&] { DeviceLinear(kernels(), other); }, {"device weight bf16"});
  const DeviceLinear linear(kernels(), matrix);
  const TensorView out(weight.data(), DType::kBF16, {1, 8}, kGpu);
  refused([&] { linear.run({.kind = InputKind::kStatic}, 1, out, nullptr); }, {"input kind 3", "expected 0"});
  refused([&] { linear.run({}, 1, out, nullptr); }, {"BF16 tokens"});
  refused([&] { linear.run({.rows = weight.data()}, -1, out, nullptr); }, {"tokens -1", "expected >= 1"});
  refused([&] { linear.run({.rows = weight.data()}, 2, out, nullptr); }, {"out bf16[1, 8]", "[2, 8]"});
  refused([&] { DeviceLinear().run({}, 1, out, nullptr); }, {"expected a weight"});
  linear.run({}, 0, out, nullptr);  // nothing to do
}

}  // namespace
}  // namespace quaver::testing
