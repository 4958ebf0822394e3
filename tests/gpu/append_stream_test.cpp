// Append in CUDA graphs and on two streams at once.
#include <gtest/gtest.h>

#include "append_device.h"

namespace quaver::testing {
namespace {

KvLayout layout(KvDtype dtype, int head_dim) {
  return {.dtype = dtype, .num_kv_heads = 2, .head_dim_k = head_dim, .head_dim_v = head_dim, .page_size = 32};
}

/// Device tensors of fixed addresses that take one append after the other.
class AppendBuffers {
 public:
  explicit AppendBuffers(const DeviceAppend& shape)
      : args(shape.views(kGpu)),
        k_(to_device(shape.k)),
        v_(to_device(shape.v)),
        slots_(to_device(shape.slots)),
        pages_(to_device(shape.pages)) {
    args.k.data = k_.data();
    args.v.data = v_.data();
    args.slots.data = slots_.data();
    args.pages.data = pages_.data();
  }

  void load(const DeviceAppend& step) {
    copy(k_, step.k);
    copy(v_, step.v);
    copy(slots_, step.slots);
    reset(step);
  }
  void reset(const DeviceAppend& step) { copy(pages_, step.pages); }
  [[nodiscard]] std::vector<uint8_t> pages() const { return to_host(pages_); }

  AppendArgs args;

 private:
  template <class T>
  static void copy(const DeviceBuffer<T>& to, const std::vector<T>& from) {
    ASSERT_EQ(to.size(), std::ssize(from));
    check_cuda(cudaMemcpy(to.data(), from.data(), to.bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  DeviceBuffer<Bf16> k_, v_;
  DeviceBuffer<int64_t> slots_;
  DeviceBuffer<uint8_t> pages_;
};

std::vector<int64_t> padded(std::vector<int64_t> slots, int64_t tokens) {
  slots.resize(static_cast<size_t>(tokens), -1);
  return slots;
}

// B24: captured with one set of slots, replayed with others: whole blocks, single tokens, padding tokens (slot -1).
TEST(AppendGraph, ReplayWithOtherSlots) {
  constexpr int64_t kPages = 40;
  for (const KvDtype dtype : {KvDtype::kE4M3, KvDtype::kBF16}) {
    for (const int64_t tokens : {int64_t{70}, int64_t{600}}) {  // both FP8 kernels
      SCOPED_TRACE(concat(kv_dtype_name(dtype), ", ", tokens, " tokens"));
      const std::vector<std::vector<int64_t>> steps{consecutive(0, tokens), shuffled(tokens, kPages * 32, 5),
                                                    padded(consecutive(37, tokens / 2 + 3), tokens), padded({}, tokens),
                                                    padded({1279, 0, -1, 64}, tokens)};
      const DeviceAppend shape(layout(dtype, 96), steps[0], kPages);
      AppendBuffers buffers(shape);
      const CudaStream stream = make_stream();
      const CudaGraphExec graph = capture_graph(stream.get(), [&](cudaStream_t s) { append_kv(buffers.args, s); });
      for (size_t i = 0; i < steps.size(); ++i) {
        SCOPED_TRACE(i);
        const DeviceAppend step(layout(dtype, 96), steps[i], kPages, i + 2);
        buffers.load(step);
        check_cuda(cudaGraphLaunch(graph.get(), stream.get()), "cudaGraphLaunch");
        check_cuda(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
        EXPECT_EQ(buffers.pages(), step.on_cpu());
      }
    }
  }
}

TEST(AppendStreams, TwoAtOnce) {
  const DeviceAppend one(layout(KvDtype::kE4M3, 256), shuffled(1500, 64 * 32, 7), 64, 1);
  const DeviceAppend two(layout(KvDtype::kE4M3, 128), shuffled(300, 40 * 32, 8), 40, 2);
  const std::vector<uint8_t> expected_one = one.on_cpu();
  const std::vector<uint8_t> expected_two = two.on_cpu();
  AppendBuffers a(one);
  AppendBuffers b(two);
  const CudaStream stream_a = make_stream();
  const CudaStream stream_b = make_stream();
  for (int repeat = 0; repeat < 20; ++repeat) {
    a.reset(one);
    b.reset(two);
    for (int layer = 0; layer < 4; ++layer) {  // the same bytes each time
      append_kv(a.args, stream_a.get());
      append_kv(b.args, stream_b.get());
    }
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    ASSERT_EQ(a.pages(), expected_one);
    ASSERT_EQ(b.pages(), expected_two);
  }
}

}  // namespace
}  // namespace quaver::testing
