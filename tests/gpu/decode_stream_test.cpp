// CUDA graphs, streams and batch-mates.
#include <gtest/gtest.h>

#include "attention/tiles.h"
#include "device_case.h"
#include "testing/random.h"

namespace quaver::testing {
namespace {

KvLayout layout(int kv_heads, int head_dim, int page_size = 64) {
  return {.num_kv_heads = kv_heads, .head_dim_k = head_dim, .head_dim_v = head_dim, .page_size = page_size};
}

/// Device tensors of fixed addresses that take one case after the other, as a serving step does.
class StepBuffers {
 public:
  StepBuffers(const Case& shape, int64_t max_pages, int64_t table_width)
      : args(shape.args),
        table_width_(table_width),
        pages_(max_pages * shape.args.pages.dim(1)),
        table_(shape.args.seq_lens.dim(0) * table_width),
        lens_(shape.args.seq_lens.dim(0)),
        query_start_(shape.args.query_start.dim(0)),
        q_(shape.args.q.num_elements()),
        out_(shape.args.out.num_elements()),
        lse_(shape.args.lse.num_elements()) {
    const Device gpu{.kind = Device::Kind::kCuda, .index = 0};
    args.pages = ConstTensorView(pages_.data(), DType::kU8, {max_pages, shape.args.pages.dim(1)}, gpu);
    args.block_table = ConstTensorView(table_.data(), DType::kI32, {lens_.size(), table_width}, gpu);
    args.q.data = q_.data();
    args.seq_lens.data = lens_.data();
    args.query_start.data = query_start_.data();
    args.out.data = out_.data();
    args.lse.data = lse_.data();
    for (ConstTensorView* view : {&args.q, &args.seq_lens, &args.query_start}) view->device = gpu;
    args.out.device = args.lse.device = gpu;
  }

  void load(const Case& step) {
    copy(pages_.data(), step.pages);
    copy(lens_.data(), step.seq_lens);
    copy(query_start_.data(), step.query_start);
    copy(q_.data(), step.q_bf16);
    std::vector<int32_t> table(static_cast<size_t>(table_.size()), -1);
    const auto width = static_cast<size_t>(step.args.block_table.dim(1));
    for (size_t b = 0; b < step.seq_lens.size(); ++b) {
      std::copy_n(step.block_table.begin() + b * width, width, table.begin() + b * static_cast<size_t>(table_width_));
    }
    copy(table_.data(), table);
    check_cuda(cudaMemset(out_.data(), 0xFF, out_.bytes()), "cudaMemset");
    check_cuda(cudaMemset(lse_.data(), 0xFF, lse_.bytes()), "cudaMemset");
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  [[nodiscard]] Outputs outputs() const { return {.bf16 = to_host(out_), .f32 = {}, .lse = to_host(lse_)}; }

  AttentionArgs args;

 private:
  template <class T>
  static void copy(T* to, const std::vector<T>& from) {
    check_cuda(cudaMemcpy(to, from.data(), sizeof(T) * from.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  int64_t table_width_;
  DeviceBuffer<uint8_t> pages_;
  DeviceBuffer<int32_t> table_, lens_, query_start_;
  DeviceBuffer<Bf16> q_, out_;
  DeviceBuffer<float> lse_;
};

Case step_case(std::vector<int32_t> lengths, int head_dim, uint64_t seed) {
  return Case({.query_lens = std::vector<int32_t>(lengths.size(), 1),
               .kv_lens = std::move(lengths),
               .num_q_heads = 8,
               .kv = layout(2, head_dim),
               .seed = seed});
}

// B24: captured with one set of lengths, replayed with others; padding rows of length 0 are zero.
TEST(DecodeGraph, ReplayWithOtherLengths) {
  for (const int head_dim : {128, 512}) {  // combined in the kernel and by the combine kernel
    for (const bool batch_invariant : {false, true}) {
      SCOPED_TRACE(concat("d ", head_dim, batch_invariant ? " fixed splits" : " even cut"));
      const std::vector<std::vector<int32_t>> steps{{1, 1, 1, 1, 1, 1, 1, 1},
                                                    {4096, 1, 17, 0, 0, 0, 0, 0},
                                                    {20000, 5, 64, 63, 4097, 1000, 0, 1},
                                                    {1, 1, 1, 1, 1, 1, 1, 1}};
      const Case shape = step_case(steps[0], head_dim, 1);
      StepBuffers buffers(shape, 450, 320);
      AttentionProblem problem = shape.problem;
      problem.arch = 90;
      const AttentionPlan plan = decode_plan(problem, Precision::kSplit, batch_invariant);
      DeviceAttention attention(problem, plan, query_device(0), {.max_sequences = 8, .max_kv_tokens = 30000});
      const CudaStream stream = make_stream();
      buffers.load(shape);
      const CudaGraphExec graph = capture_graph(stream.get(), [&](cudaStream_t s) {
        attention.schedule(buffers.args, s);
        attention.run(buffers.args, s);
        attention.run(buffers.args, s);  // a second layer with the same work list
      });
      for (size_t i = 0; i < steps.size(); ++i) {
        SCOPED_TRACE(i);
        const Case step = step_case(steps[i], head_dim, i + 1);
        buffers.load(step);
        check_cuda(cudaGraphLaunch(graph.get(), stream.get()), "cudaGraphLaunch");
        check_cuda(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
        DeviceCase eager(step);
        EXPECT_TRUE(buffers.outputs() == eager.run(plan));
      }
    }
  }
}

TEST(DecodeStreams, TwoAtOnce) {
  const Case one = step_case({9000, 3, 700, 0, 64, 129}, 128, 3);
  const Case two = step_case({5000, 6000, 1}, 256, 4);
  DeviceCase a(one);
  DeviceCase b(two);
  const DeviceInfo device = query_device(0);
  DeviceAttention attention_a(a.problem, decode_plan(a.problem, Precision::kSplit), device, a.limits());
  DeviceAttention attention_b(b.problem, decode_plan(b.problem, Precision::kSplit), device, b.limits());
  const Outputs expected_a = a.run(attention_a);
  const Outputs expected_b = b.run(attention_b);
  const CudaStream stream_a = make_stream();
  const CudaStream stream_b = make_stream();
  for (int repeat = 0; repeat < 20; ++repeat) {
    a.poison();
    b.poison();
    for (int layer = 0; layer < 4; ++layer) {
      attention_a.schedule(a.args, stream_a.get());
      attention_b.schedule(b.args, stream_b.get());
      attention_a.run(a.args, stream_a.get());
      attention_b.run(b.args, stream_b.get());
    }
    ASSERT_TRUE(expected_a == a.outputs());
    ASSERT_TRUE(expected_b == b.outputs());
  }
}

// B25: with fixed splits a sequence's result does not depend on its batch-mates, bit for bit.
TEST(DecodeBatchInvariance, AloneAndInAnyBatch) {
  const auto element = [](uint64_t salt) {
    return [salt](int b, int64_t token, int head, int dim) {
      Random random(salt + static_cast<uint64_t>(b) * 7919 +
                    static_cast<uint64_t>((token * 8 + head) * 512 + dim) * 0x9E3779B97F4A7C15U);
      return random.normal();
    };
  };
  for (const int length : {1, 129, 5000, 12289}) {
    std::vector<Bf16> alone;
    float alone_lse = 0.0F;
    for (const size_t batch : {1, 2, 17, 32, 33, 64}) {
      SCOPED_TRACE(concat("length ", length, ", batch ", batch));
      std::vector<int32_t> lengths(batch, 0);
      Random random(batch);
      for (int32_t& other : lengths) other = static_cast<int32_t>(random.below(300));
      lengths[0] = length;
      const Case host({.query_lens = std::vector<int32_t>(batch, 1),
                       .kv_lens = lengths,
                       .num_q_heads = 4,
                       .kv = layout(2, 64),
                       .seed = batch,
                       .query = element(1),
                       .key = element(2),
                       .value = element(3)});
      DeviceCase device(host);
      const Outputs outputs = device.run(decode_plan(device.problem, Precision::kSplit, true));
      const std::vector<Bf16> row(outputs.bf16.begin(), outputs.bf16.begin() + 4 * 64);
      if (batch == 1) {
        alone = row;
        alone_lse = outputs.lse[0];
      }
      EXPECT_TRUE(row == alone);
      EXPECT_EQ(outputs.lse[0], alone_lse);
    }
  }
}

}  // namespace
}  // namespace quaver::testing
