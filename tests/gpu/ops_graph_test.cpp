// The fused ops of a layer one behind the other: programmatic launches in a graph give the bits that the ops give with
// the device idle between them. Also what their host side refuses.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "append_device.h"
#include "ops/cuda/device_ops.h"
#include "ops/rope.h"
#include "ops_rows_case.h"
#include "testing/expect_error.h"

namespace quaver::testing {
namespace {

constexpr int64_t kTokens = 67;
constexpr int64_t kHidden = 640;
constexpr int64_t kInner = 2048;
constexpr int kQHeads = 4;
constexpr int kDim = 64;
constexpr int64_t kQkvWidth = (kQHeads + 2) * kDim;
constexpr KvLayout kLayout{.num_kv_heads = 1, .head_dim_k = kDim, .head_dim_v = kDim, .page_size = 16};
constexpr int64_t kPages = 6;

/// Buffers of one layer. The products between the ops are left out: each op reads what its predecessor wrote, as far as
/// shapes allow.
class Layer {
 public:
  explicit Layer(InputKind kind)
      : normed_({.kind = kind, .tokens = kTokens, .columns = kHidden}),
        attended_({.kind = InputKind::kPerToken, .tokens = kTokens, .columns = kQkvWidth}),
        activated_({.kind = kind, .tokens = kTokens, .columns = kInner}) {}

  /// Every op, `between(…)` after each.
  void run(cudaStream_t stream, const std::function<void()>& between = [] {}) const {
    using namespace device_ops;
    rope_table({.positions = positions_.data(),
                .frequencies = frequencies_.data(),
                .rotary_pairs = kDim / 2,
                .num_tokens = kTokens,
                .table = table_.data()},
               stream);
    between();
    embed_tokens({.table = embedding_.data(),
                  .vocab_size = 100,
                  .token_ids = ids_.data(),
                  .scale = 25.25F,
                  .num_tokens = kTokens,
                  .hidden_size = kHidden,
                  .hidden = hidden_.data()},
                 stream);
    between();
    norm_quantize({.hidden = hidden_.data(),
                   .norm = norm_.data(),
                   .num_tokens = kTokens,
                   .hidden_size = kHidden,
                   .out = normed_.view()},
                  stream);
    between();
    qkv_append({.qkv = hidden_.data(),  // 67 rows of 384: the residual stream as the product would be
                .num_tokens = kTokens,
                .num_q_heads = kQHeads,
                .layout = kLayout,
                .q_norm = norm_.data(),
                .k_norm = norm_.data() + kDim,
                .v_norm = true,
                .rotary_pairs = kDim / 2,
                .rope_table = table_.data(),
                .slots = slots_.data(),
                .pages = TensorView(pages_.data(), DType::kU8, {kPages, page_format::page_bytes(kLayout)}, kGpu)},
               stream);
    between();
    quantize({.rows = hidden_.data(), .num_tokens = kTokens, .width = kQkvWidth, .out = attended_.view()}, stream);
    between();
    for (const bool last : {false, true}) {
      add_norm_quantize({.projected = projected_.data(),
                         .post_norm = norm_.data(),
                         .hidden = hidden_.data(),
                         .layer_scalar = last ? 0.8F : 1.0F,
                         .next_norm = last ? nullptr : norm_.data(),
                         .num_tokens = kTokens,
                         .hidden_size = kHidden,
                         .out = normed_.view()},
                        stream);
      between();
    }
    geglu_quantize(
        {.gate_up = gate_up_.data(), .num_tokens = kTokens, .intermediate_size = kInner, .out = activated_.view()},
        stream);
    between();
    final_norm({.hidden = hidden_.data(),
                .rows = gather_.data(),
                .num_rows = 3,
                .hidden_size = kHidden,
                .norm = norm_.data(),
                .out = final_.data()},
               stream);
    between();
  }

  /// Everything that was written.
  [[nodiscard]] std::vector<uint8_t> bytes() const {
    std::vector<uint8_t> all;
    const auto add = [&](const auto& values) {
      const auto* const begin = reinterpret_cast<const uint8_t*>(values.data());
      all.insert(all.end(), begin, begin + values.size() * sizeof(values[0]));
    };
    for (const InputBuffer* const input : {&normed_, &attended_, &activated_}) {
      const InputBytes written = input->bytes();
      add(written.packed);
      add(written.scales);
      add(written.rows);
    }
    add(to_host(hidden_));
    add(to_host(pages_));
    add(to_host(final_));
    return all;
  }

  void clear() const {
    check_cuda(cudaMemset(hidden_.data(), 0xFF, hidden_.bytes()), "cudaMemset");
    check_cuda(cudaMemset(pages_.data(), 0, pages_.bytes()), "cudaMemset");
    check_cuda(cudaMemset(table_.data(), 0xFF, table_.bytes()), "cudaMemset");
    check_cuda(cudaMemset(final_.data(), 0xFF, final_.bytes()), "cudaMemset");
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

 private:
  static std::vector<int32_t> counted(int32_t step) {
    std::vector<int32_t> values(kTokens);
    for (int32_t i = 0; i < kTokens; ++i) values[static_cast<size_t>(i)] = i * step % 97;
    return values;
  }
  DeviceBuffer<int32_t> positions_ = to_device(counted(31));
  DeviceBuffer<int32_t> ids_ = to_device(counted(17));
  DeviceBuffer<int32_t> gather_ = to_device(std::vector<int32_t>{66, 0, 33});
  DeviceBuffer<int64_t> slots_ = to_device(consecutive(7, kTokens));
  DeviceBuffer<float> frequencies_ =
      to_device(rope_frequencies({.head_dim = kDim, .rotary_pairs = kDim / 2, .theta = 1e4}));
  DeviceBuffer<float> norm_ = to_device(test_weights(kHidden, 31));
  DeviceBuffer<Bf16> embedding_ = to_device(test_rows(100, kHidden, 32));
  DeviceBuffer<Bf16> projected_ = to_device(test_rows(kTokens, kHidden, 33));
  DeviceBuffer<Bf16> gate_up_ = to_device(test_rows(kTokens, 2 * kInner, 34));
  DeviceBuffer<float> table_{kTokens * device_ops::rope_table_width(kDim / 2)};
  DeviceBuffer<Bf16> hidden_{kTokens * kHidden};
  DeviceBuffer<uint8_t> pages_{kPages * page_format::page_bytes(kLayout)};
  DeviceBuffer<Bf16> final_{3 * kHidden};
  InputBuffer normed_, attended_, activated_;
};

TEST(OpsGraph, ReplayGivesTheBitsOfSingleOps) {
  for (const InputKind kind : kInputKinds) {
    SCOPED_TRACE(kind_name(kind));
    const Layer layer(kind);
    const CudaStream stream = make_stream();
    layer.clear();
    layer.run(stream.get(), [&] { check_cuda(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize"); });
    const std::vector<uint8_t> expected = layer.bytes();
    const CudaGraphExec graph = capture_graph(stream.get(), [&](cudaStream_t s) { layer.run(s); });
    for (int replay = 0; replay < 3; ++replay) {
      layer.clear();
      check_cuda(cudaGraphLaunch(graph.get(), stream.get()), "cudaGraphLaunch");
      check_cuda(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
      EXPECT_TRUE(layer.bytes() == expected) << "replay " << replay;
    }
    layer.clear();
    layer.run(stream.get());
    check_cuda(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
    EXPECT_TRUE(layer.bytes() == expected) << "without a graph";
  }
}

// Refused before anything is launched, by name.
TEST(OpsChecks, WhatTheHostCanSee) {
  const DeviceBuffer<Bf16> rows(4 * 640);
  const DeviceBuffer<float> norm(640);
  const InputBuffer out({.kind = InputKind::kPerToken, .tokens = 4, .columns = 640});
  const InputBuffer blocks({.kind = InputKind::kPerBlock, .tokens = 4, .columns = 640});
  using device_ops::NormQuantizeArgs;
  const auto refused = [&](const std::function<void(NormQuantizeArgs&)>& change, const char* part) {
    NormQuantizeArgs args{
        .hidden = rows.data(), .norm = norm.data(), .num_tokens = 4, .hidden_size = 640, .out = out.view()};
    change(args);
    expect_error([&] { device_ops::norm_quantize(args, nullptr); }, ErrorKind::kInvalidArgument, {part});
  };
  refused([](NormQuantizeArgs& a) { a.hidden_size = 644; }, "columns 644");
  refused([](NormQuantizeArgs& a) { a.hidden_size = 8200; }, "columns 8200");
  refused([](NormQuantizeArgs& a) { a.num_tokens = -1; }, "rows -1");
  refused([](NormQuantizeArgs& a) { a.eps = 0.0F; }, "eps 0");
  refused([](NormQuantizeArgs& a) { a.hidden += 4; }, "hidden");
  refused([](NormQuantizeArgs& a) { a.norm = nullptr; }, "norm");
  refused([](NormQuantizeArgs& a) { a.out.packed = nullptr; }, "GEMM input packed");
  refused([](NormQuantizeArgs& a) { a.out.scale_stride = 0; }, "scale stride 0");
  refused([](NormQuantizeArgs& a) { a.out.kind = InputKind::kBf16; }, "GEMM input rows");
  refused(
      [](NormQuantizeArgs& a) {
        a.out.kind = InputKind::kStatic;
        a.out.scale_stride = 0;
        a.out.static_scale = 0.0F;
      },
      "static scale 0");
  refused(
      [&](NormQuantizeArgs& a) {
        a.out = blocks.view();
        a.out.scale_stride = 4;
      },
      "scale stride 4");
  expect_error(
      [&] {
        device_ops::quantize({.rows = rows.data(), .num_tokens = 4, .width = 640, .out = {.rows = rows.data()}},
                             nullptr);
      },
      ErrorKind::kInvalidArgument, {"E4M3"});
  using device_ops::QkvAppendArgs;
  const auto qkv_refused = [&](const std::function<void(QkvAppendArgs&)>& change, const char* part) {
    QkvAppendArgs args{.qkv = rows.data(),
                       .num_tokens = 1,
                       .num_q_heads = 1,
                       .layout = kLayout,
                       .q_norm = norm.data(),
                       .k_norm = norm.data(),
                       .slots = reinterpret_cast<const int64_t*>(norm.data()),
                       .pages = TensorView(rows.data(), DType::kU8, {1, page_format::page_bytes(kLayout)}, kGpu)};
    change(args);
    expect_error([&] { device_ops::qkv_append(args, nullptr); }, ErrorKind::kInvalidArgument, {part});
  };
  qkv_refused([](QkvAppendArgs& a) { a.layout.head_dim_k = a.layout.head_dim_v = 528; }, "head dims 528");
  qkv_refused([](QkvAppendArgs& a) { a.layout.head_dim_v = 128; }, "head dims 64 and 128");
  qkv_refused([](QkvAppendArgs& a) { a.rotary_pairs = 33; }, "rotary pairs 33");
  qkv_refused([](QkvAppendArgs& a) { a.rotary_pairs = 8; }, "rope table");
  qkv_refused([](QkvAppendArgs& a) { a.slots = nullptr; }, "slots");
  qkv_refused([](QkvAppendArgs& a) { a.pages.shape[1] -= 1; }, "pages");
  qkv_refused([](QkvAppendArgs& a) { a.num_q_heads = 0; }, "q heads 0");
}

}  // namespace
}  // namespace quaver::testing
