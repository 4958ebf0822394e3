#include "attention/append_case.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "attention/device_attention.h"
#include "attention/device_data.h"
#include "core/bf16.h"
#include "kv_cache/device_cache.h"
#include "kv_cache/page_format.h"

namespace quaver::bench {
namespace {

constexpr int kHeads = 16;
constexpr int kDim = 256;
constexpr int64_t kRow = int64_t{kHeads} * kDim;
constexpr KvLayout kLayout{.num_kv_heads = kHeads, .head_dim_k = kDim, .head_dim_v = kDim, .page_size = 64};
constexpr Device kGpu{.kind = Device::Kind::kCuda, .index = 0};

template <class T>
DeviceBuffer<T> upload(const std::vector<T>& values) {
  DeviceBuffer<T> buffer(std::ssize(values));
  check_cuda(cudaMemcpy(buffer.data(), values.data(), buffer.bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
  return buffer;
}

template <class T>
std::vector<T> download(const DeviceBuffer<T>& buffer) {
  std::vector<T> values(static_cast<size_t>(buffer.size()));
  check_cuda(cudaMemcpy(values.data(), buffer.data(), buffer.bytes(), cudaMemcpyDeviceToHost), "cudaMemcpy");
  return values;
}

std::vector<int32_t> shuffled_pages(int64_t count) {
  std::vector<int32_t> pages(static_cast<size_t>(count));
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), std::mt19937(5));
  return pages;
}

}  // namespace

nlohmann::json append_prompt(int64_t tokens, double copy_ceiling, Timer& timer) {
  constexpr int64_t kStart = 5;
  cudaStream_t stream = timer.stream();
  const int64_t num_pages = (kStart + tokens) / kLayout.page_size + 1;
  const std::vector<int32_t> table = shuffled_pages(num_pages);
  std::vector<int64_t> slots;
  for (int64_t at = kStart; at < kStart + tokens; ++at) {
    slots.push_back(int64_t{table[static_cast<size_t>(at / kLayout.page_size)]} * kLayout.page_size +
                    at % kLayout.page_size);
  }
  const DeviceBuffer<__nv_bfloat16> k(tokens * kRow);
  const DeviceBuffer<__nv_bfloat16> v(tokens * kRow);
  fill_normal_bf16(k.data(), k.size(), 3, stream);
  fill_normal_bf16(v.data(), v.size(), 4, stream);
  const auto device_slots = upload(slots);
  const int64_t page_bytes = page_format::page_bytes(kLayout);
  const DeviceBuffer<uint8_t> pages(num_pages * page_bytes);
  AppendArgs args;
  args.layout = kLayout;
  args.k = ConstTensorView(k.data(), DType::kBF16, {tokens, kHeads, kDim}, kGpu);
  args.v = ConstTensorView(v.data(), DType::kBF16, {tokens, kHeads, kDim}, kGpu);
  args.slots = ConstTensorView(device_slots.data(), DType::kI64, {tokens}, kGpu);
  args.pages = TensorView(pages.data(), DType::kU8, {num_pages, page_bytes}, kGpu);
  const double us = timer.median_us([&] { append_kv(args, stream); });

  const auto host_k = download(k);
  const auto host_v = download(v);
  std::vector<uint8_t> expected(static_cast<size_t>(pages.size()));
  args.k = ConstTensorView(host_k.data(), DType::kBF16, {tokens, kHeads, kDim});
  args.v = ConstTensorView(host_v.data(), DType::kBF16, {tokens, kHeads, kDim});
  args.slots = ConstTensorView(slots.data(), DType::kI64, {tokens});
  args.pages = TensorView(expected.data(), DType::kU8, {num_pages, page_bytes});
  append_kv(args);
  const std::vector<uint8_t> got = download(pages);
  int64_t wrong = 0;
  for (size_t i = 0; i < got.size(); ++i) wrong += got[i] != expected[i] ? 1 : 0;

  const double gbps = static_cast<double>(tokens * kRow * 2 * 3) / us / 1e3;  // BF16 in, FP8 out, K and V
  return {{"name", "append_d256_t" + std::to_string(tokens)},
          {"us", us},
          {"kv_gbps", gbps},
          {"pct_ceiling", 100.0 * gbps / copy_ceiling},
          {"wrong_bytes", wrong}};
}

namespace {

/// A decode step of `batch` sequences of `length` keys, the new token included.
class Step {
 public:
  Step(int64_t batch, int32_t length, const DeviceBuffer<uint8_t>& pool, cudaStream_t stream)
      : batch_(batch), pool_(pool), stream_(stream) {
    const int64_t pages_each = (length + kLayout.page_size - 1) / kLayout.page_size;
    const std::vector<int32_t> table = shuffled_pages(batch * pages_each);
    std::vector<int64_t> slots;
    std::vector<int32_t> query_start{0};
    for (int64_t b = 0; b < batch; ++b) {
      const int64_t page = table[static_cast<size_t>(b * pages_each + (length - 1) / kLayout.page_size)];
      slots.push_back(page * kLayout.page_size + (length - 1) % kLayout.page_size);
      query_start.push_back(static_cast<int32_t>(b) + 1);
    }
    slots_ = upload(slots);
    table_ = upload(table);
    lengths_ = upload(std::vector<int32_t>(static_cast<size_t>(batch), length));
    query_start_ = upload(query_start);
    qkv_ = DeviceBuffer<__nv_bfloat16>(kLayers * batch * 4 * kRow);  // per token: 32 query heads, K, V
    out_ = DeviceBuffer<__nv_bfloat16>(batch * 2 * kRow);
    fill_normal_bf16(qkv_.data(), qkv_.size(), 9, stream);
    problem_.arch = 90;
    problem_.num_q_heads = 2 * kHeads;
    problem_.kv = kLayout;
    const auto decision = plan_attention(problem_);
    attention_ = std::make_unique<DeviceAttention>(problem_, std::get<AttentionPlan>(decision), query_device(0),
                                                   DeviceAttentionLimits{.max_sequences = batch, .max_kv_tokens = 0});
    args_.block_table = ConstTensorView(table_.data(), DType::kI32, {batch, pages_each}, kGpu);
    args_.seq_lens = ConstTensorView(lengths_.data(), DType::kI32, {batch}, kGpu);
    args_.query_start = ConstTensorView(query_start_.data(), DType::kI32, {batch + 1}, kGpu);
    args_.softmax_scale = 0.0625F;
    args_.out = TensorView(out_.data(), DType::kBF16, {batch, int64_t{2} * kHeads, kDim}, kGpu);
    attention_->schedule(args_, stream);
    check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  }

  /// Microseconds of one layer.
  double us(bool append, bool attend, Timer& timer) {
    const CudaGraphExec graph = capture_graph(stream_, [&](cudaStream_t stream) {
      for (int64_t layer = 0; layer < kLayers; ++layer) run_layer(layer, append, attend, stream);
    });
    return timer.median_us([&] { check_cuda(cudaGraphLaunch(graph.get(), stream_), "cudaGraphLaunch"); }) / kLayers;
  }

 private:
  static constexpr int64_t kLayers = 8;

  void run_layer(int64_t layer, bool append, bool attend, cudaStream_t stream) {
    const int64_t page_bytes = page_format::page_bytes(kLayout);
    const int64_t num_pages = args_.block_table.num_elements();
    const TensorView pages(pool_.data() + layer * num_pages * page_bytes, DType::kU8, {num_pages, page_bytes}, kGpu);
    const __nv_bfloat16* qkv = qkv_.data() + layer * batch_ * 4 * kRow;
    const auto part = [&](int64_t offset, int64_t heads) {
      ConstTensorView view(qkv + offset, DType::kBF16, {batch_, heads, kDim}, kGpu);
      view.strides[0] = 4 * kRow;
      return view;
    };
    if (append) {
      AppendArgs args;
      args.layout = kLayout;
      args.k = part(2 * kRow, kHeads);
      args.v = part(3 * kRow, kHeads);
      args.slots = ConstTensorView(slots_.data(), DType::kI64, {batch_}, kGpu);
      args.pages = pages;
      append_kv(args, stream);
    }
    if (attend) {
      AttentionArgs args = args_;
      args.q = part(0, int64_t{2} * kHeads);
      args.pages = pages;
      attention_->run(args, stream, append ? InFront::kNewKeys : InFront::kAnything);
    }
  }

  int64_t batch_;
  const DeviceBuffer<uint8_t>& pool_;
  cudaStream_t stream_;
  DeviceBuffer<int64_t> slots_;
  DeviceBuffer<int32_t> table_, lengths_, query_start_;
  DeviceBuffer<__nv_bfloat16> qkv_, out_;
  AttentionProblem problem_{};
  AttentionArgs args_{};
  std::unique_ptr<DeviceAttention> attention_;
};

}  // namespace

nlohmann::json append_step(int64_t batch, int32_t length, const DeviceBuffer<uint8_t>& pool, double read_ceiling,
                           Timer& timer) {
  Step step(batch, length, pool, timer.stream());
  const double attention = step.us(false, true, timer);
  const double append = step.us(true, false, timer);
  const double both = step.us(true, true, timer);
  const double gbps = static_cast<double>(batch * length * kRow * 2) / both / 1e3;
  return {{"name", "append_step_d256_b" + std::to_string(batch) + "_kv" + std::to_string(length)},
          {"us", both},
          {"kv_gbps", gbps},
          {"pct_ceiling", 100.0 * gbps / read_ceiling},
          {"attention_us", attention},
          {"append_us", append},
          {"added_us", both - attention}};
}

}  // namespace quaver::bench
