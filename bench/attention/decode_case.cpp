#include "attention/decode_case.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "attention/cpu/oracle.h"
#include "attention/tiles.h"
#include "core/e4m3.h"
#include "kv_cache/page_format.h"

namespace quaver::bench {
namespace {

template <class T>
DeviceBuffer<T> upload(const std::vector<T>& values) {
  DeviceBuffer<T> buffer(static_cast<int64_t>(values.size()));
  check_cuda(cudaMemcpy(buffer.data(), values.data(), buffer.bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
  return buffer;
}

template <class T>
std::vector<T> download(const T* device, int64_t count) {
  std::vector<T> values(static_cast<size_t>(count));
  check_cuda(cudaMemcpy(values.data(), device, sizeof(T) * values.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
  return values;
}

}  // namespace

DecodeCase::DecodeCase(const DecodeSpec& spec, const DeviceBuffer<uint8_t>& pool, const DeviceInfo& device,
                       cudaStream_t stream)
    : spec_(spec), pool_(pool), stream_(stream) {
  const auto batch = static_cast<int64_t>(spec.kv_lens.size());
  const KvLayout layout{.dtype = spec.kv_dtype,
                        .num_kv_heads = spec.num_kv_heads,
                        .head_dim_k = spec.head_dim,
                        .head_dim_v = spec.head_dim,
                        .page_size = spec.page_size};
  problem_.arch = device.arch;
  problem_.num_q_heads = spec.num_q_heads;
  problem_.kv = layout;
  problem_.max_query_len = spec.query_len;
  problem_.window = spec.window;
  problem_.precision = spec.precision;
  const auto decision = plan_attention(problem_);
  check(std::holds_alternative<AttentionPlan>(decision), "problem of ", spec.name, " ", to_string(problem_),
        ": expected one that the policy has a kernel for");
  attention_ = std::make_unique<DeviceAttention>(problem_, std::get<AttentionPlan>(decision), device,
                                                 DeviceAttentionLimits{.max_sequences = batch, .max_kv_tokens = 0});

  const int longest = *std::max_element(spec.kv_lens.begin(), spec.kv_lens.end());
  max_pages_ = (longest + spec.page_size - 1) / spec.page_size;
  layer_pages_ = batch * max_pages_;
  const int64_t page_bytes = page_format::page_bytes(layout);
  const int64_t pool_pages = pool.size() / page_bytes / spec.layers;  // of one layer
  check(layer_pages_ <= pool_pages, "pages of ", spec.name, " ", layer_pages_, ": expected at most ", pool_pages);
  std::vector<int32_t> order(static_cast<size_t>(pool_pages));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(5));
  table_.assign(order.begin(), order.begin() + layer_pages_);
  std::vector<int32_t> query_start(static_cast<size_t>(batch) + 1);
  for (size_t b = 0; b < query_start.size(); ++b) query_start[b] = static_cast<int32_t>(b) * spec.query_len;

  const int64_t tokens = batch * spec.query_len;
  const int64_t row = int64_t{spec.num_q_heads} * spec.head_dim;
  q_ = DeviceBuffer<__nv_bfloat16>(tokens * row);
  out_ = DeviceBuffer<__nv_bfloat16>(tokens * row);
  lse_ = DeviceBuffer<float>(tokens * spec.num_q_heads);
  fill_normal_bf16(q_.data(), q_.size(), 77, stream);
  block_table_ = upload(table_);
  seq_lens_ = upload(spec.kv_lens);
  query_start_ = upload(query_start);
  const Device gpu{.kind = Device::Kind::kCuda, .index = device.index};
  args_.q = ConstTensorView(q_.data(), DType::kBF16, {tokens, spec.num_q_heads, spec.head_dim}, gpu);
  args_.pages = ConstTensorView(pool.data(), DType::kU8, {pool_pages, page_bytes}, gpu);
  args_.block_table = ConstTensorView(block_table_.data(), DType::kI32, {batch, max_pages_}, gpu);
  args_.seq_lens = ConstTensorView(seq_lens_.data(), DType::kI32, {batch}, gpu);
  args_.query_start = ConstTensorView(query_start_.data(), DType::kI32, {batch + 1}, gpu);
  args_.softmax_scale = 1.0F / std::sqrt(static_cast<float>(spec.head_dim));
  args_.out = TensorView(out_.data(), DType::kBF16, {tokens, spec.num_q_heads, spec.head_dim}, gpu);
  args_.lse = TensorView(lse_.data(), DType::kF32, {tokens, spec.num_q_heads}, gpu);
  attention_->schedule(args_, stream);
  check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

void DecodeCase::run_layer(int layer) {
  AttentionArgs args = args_;
  args.pages.data = pool_.data() + layer * args_.pages.dim(0) * args_.pages.dim(1);
  attention_->run(args, stream_);
}

double DecodeCase::kv_bytes() const {
  double tokens = 0.0;
  for (const int32_t length : spec_.kv_lens) {
    tokens += spec_.window > 0 ? std::min(length, spec_.window + spec_.query_len - 1) : length;
  }
  return tokens * 2.0 * spec_.num_kv_heads * spec_.head_dim * (spec_.kv_dtype == KvDtype::kBF16 ? 2.0 : 1.0);
}

CudaGraphExec DecodeCase::graph_of_layers() {
  return capture_graph(stream_, [&](cudaStream_t) {
    for (int layer = 0; layer < spec_.layers; ++layer) run_layer(layer);
  });
}

double DecodeCase::held_us(int seconds) {
  const CudaGraphExec graph = graph_of_layers();
  const CudaEvent begin = make_event();
  const CudaEvent end = make_event();
  const auto half_us = [&] {
    float ms = 0.0F;
    int64_t launches = 0;
    check_cuda(cudaEventRecord(begin.get(), stream_), "cudaEventRecord");
    while (ms < 500.0F * static_cast<float>(seconds)) {
      constexpr int kLaunches = 200;  // between two looks at the clock
      for (int i = 0; i < kLaunches; ++i) check_cuda(cudaGraphLaunch(graph.get(), stream_), "cudaGraphLaunch");
      launches += kLaunches;
      check_cuda(cudaEventRecord(end.get(), stream_), "cudaEventRecord");
      check_cuda(cudaEventSynchronize(end.get()), "cudaEventSynchronize");
      check_cuda(cudaEventElapsedTime(&ms, begin.get(), end.get()), "cudaEventElapsedTime");
    }
    return 1e3 * static_cast<double>(ms) / static_cast<double>(launches * spec_.layers);
  };
  half_us();
  return half_us();
}

double DecodeCase::time_us(Timer& timer) {
  if (spec_.layers == 1) return timer.median_us([&] { run_layer(0); });
  const CudaGraphExec graph = graph_of_layers();
  return timer.median_us([&] { check_cuda(cudaGraphLaunch(graph.get(), stream_), "cudaGraphLaunch"); }) / spec_.layers;
}

std::vector<float> DecodeCase::natural(const std::vector<uint8_t>& page_bytes, int sequence, int head, bool values) {
  const KvLayout& layout = problem_.kv;
  const int length = spec_.kv_lens[static_cast<size_t>(sequence)];
  const int64_t stride = page_format::page_bytes(layout);
  std::vector<float> result;
  for (int token = 0; token < length; ++token) {
    const int in_page = token % layout.page_size;
    for (int d = 0; d < spec_.head_dim; ++d) {
      const int64_t offset =
          values ? page_format::v_offset(layout, head, in_page, d) : page_format::k_offset(layout, head, in_page, d);
      const uint8_t* code = page_bytes.data() + token / layout.page_size * stride + offset;
      if (spec_.kv_dtype == KvDtype::kE4M3) {
        result.push_back(e4m3_decode(*code));
      } else {
        result.push_back(to_float(Bf16{static_cast<uint16_t>(code[0] | code[1] << 8)}));
      }
    }
  }
  return result;
}

double DecodeCase::relative_l2() {
  check_cuda(cudaMemset(out_.data(), 0xFF, out_.bytes()), "cudaMemset");
  run_layer(0);
  check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  const auto batch = static_cast<int>(spec_.kv_lens.size());
  const int group = spec_.num_q_heads / spec_.num_kv_heads;
  const int64_t stride = args_.pages.dim(1);
  double error = 0.0;
  double square = 0.0;
  for (int sample = 0; sample < 2; ++sample) {  // first and last sequence, first and last head
    const int sequence = sample == 0 ? 0 : batch - 1;
    const int head = sample == 0 ? 0 : spec_.num_kv_heads - 1;
    const int64_t pages = (spec_.kv_lens[static_cast<size_t>(sequence)] + spec_.page_size - 1) / spec_.page_size;
    std::vector<uint8_t> bytes(static_cast<size_t>(pages * stride));
    for (int64_t page = 0; page < pages; ++page) {
      const int64_t id = table_[static_cast<size_t>(sequence * max_pages_ + page)];
      check_cuda(cudaMemcpy(bytes.data() + page * stride, pool_.data() + id * stride, static_cast<size_t>(stride),
                            cudaMemcpyDeviceToHost),
                 "cudaMemcpy");
    }
    std::vector<float> q;
    std::vector<float> out;
    const int64_t row = int64_t{spec_.num_q_heads} * spec_.head_dim;
    for (int token = 0; token < spec_.query_len; ++token) {
      const int64_t offset = (int64_t{sequence} * spec_.query_len + token) * row + head * group * spec_.head_dim;
      const auto count = int64_t{group} * spec_.head_dim;
      for (const Bf16 x : download(reinterpret_cast<const Bf16*>(q_.data()) + offset, count)) q.push_back(to_float(x));
      for (const Bf16 x : download(reinterpret_cast<const Bf16*>(out_.data()) + offset, count)) {
        out.push_back(to_float(x));
      }
    }
    const std::vector<float> k = natural(bytes, sequence, head, false);
    const std::vector<float> v = natural(bytes, sequence, head, true);
    OracleInput input;
    input.num_q_heads = group;
    input.head_dim_k = input.head_dim_v = spec_.head_dim;
    input.q = q;
    input.k = k;
    input.v = v;
    input.softmax_scale = static_cast<double>(args_.softmax_scale);
    input.window = spec_.window;
    const OracleOutput expected = attention_oracle(input);
    for (size_t i = 0; i < out.size(); ++i) {
      const double difference = static_cast<double>(out[i]) - expected.out[i];
      error += difference * difference;
      square += expected.out[i] * expected.out[i];
    }
  }
  return std::sqrt(error / square);
}

}  // namespace quaver::bench
