#include "attention/prefill_case.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "attention/cpu/oracle.h"
#include "core/e4m3.h"
#include "kv_cache/page_format.h"

namespace quaver::bench {
namespace {

template <class T>
DeviceBuffer<T> upload(const std::vector<T>& values) {
  DeviceBuffer<T> buffer(std::ssize(values));
  check_cuda(cudaMemcpy(buffer.data(), values.data(), buffer.bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
  return buffer;
}

/// `count` values from `first` on.
std::vector<float> download(const DeviceBuffer<__nv_bfloat16>& buffer, int64_t first, int64_t count) {
  std::vector<Bf16> values(static_cast<size_t>(count));
  check_cuda(cudaMemcpy(values.data(), buffer.data() + first, sizeof(Bf16) * values.size(), cudaMemcpyDeviceToHost),
             "cudaMemcpy");
  std::vector<float> floats;
  for (const Bf16 x : values) floats.push_back(to_float(x));
  return floats;
}

}  // namespace

std::vector<PrefillSpec> prefill_suite() {
  const auto make = [](int head_dim, int kv_heads, int batch, int query_len, int kv_len, int window = 0,
                       Precision precision = Precision::kSingle) {
    PrefillSpec spec;
    spec.head_dim = head_dim;
    spec.num_kv_heads = kv_heads;
    spec.batch = batch;
    spec.query_len = query_len;
    spec.kv_len = kv_len;
    spec.window = window;
    spec.precision = precision;
    spec.name = concat("d", head_dim, "_b", batch, "_q", query_len, "_kv", kv_len,
                       window > 0 ? concat("_w", window) : std::string("_causal"), "_", precision_name(precision));
    return spec;
  };
  // Few rows over a long context, in the precision that the policy gives them.
  const auto read_bound = [&](int head_dim, int kv_heads, int batch, int query_len, int kv_len) {
    PrefillSpec spec = make(head_dim, kv_heads, batch, query_len, kv_len, 0, Precision::kAuto);
    spec.name = concat("d", head_dim, "_b", batch, "_q", query_len, "_kv", kv_len);
    spec.read_bound = true;
    return spec;
  };
  std::vector<PrefillSpec> suite = {
      make(256, 16, 1, 8192, 8192),   make(256, 16, 1, 16384, 16384), make(256, 16, 1, 8192, 8192, 1024),
      make(256, 16, 4, 4096, 4096),   make(256, 16, 1, 2048, 32768),  make(192, 8, 1, 8192, 8192),
      make(128, 8, 1, 8192, 8192),    make(128, 8, 1, 16384, 16384),  make(96, 8, 1, 8192, 8192),
      make(64, 8, 1, 8192, 8192),     make(512, 4, 1, 8192, 8192),    read_bound(256, 16, 1, 128, 131072),
      read_bound(512, 4, 8, 8, 32768)};
  for (const auto& [head_dim, kv_heads] : {std::pair{256, 16}, {192, 8}, {128, 8}, {96, 8}, {64, 8}, {512, 4}}) {
    suite.push_back(make(head_dim, kv_heads, 1, 8192, 8192, 0, Precision::kSplit));
  }
  return suite;
}

PrefillCase::PrefillCase(const PrefillSpec& spec, const DeviceBuffer<uint8_t>& pages, const DeviceInfo& device,
                         cudaStream_t stream)
    : spec_(spec), pages_(pages), stream_(stream) {
  problem_.arch = device.arch;
  problem_.num_q_heads = spec.num_q_heads;
  problem_.kv = {.num_kv_heads = spec.num_kv_heads,
                 .head_dim_k = spec.head_dim,
                 .head_dim_v = spec.head_dim,
                 .page_size = spec.page_size};
  problem_.max_query_len = spec.query_len;
  problem_.window = spec.window;
  problem_.precision = spec.precision;
  problem_.kernel = AttentionKernel::kPrefillFp8;
  const auto decision = plan_attention(problem_);
  check(std::holds_alternative<AttentionPlan>(decision), "problem of ", spec.name, " ", to_string(problem_),
        ": expected one that the prefill kernel takes");
  attention_ =
      std::make_unique<DeviceAttention>(problem_, std::get<AttentionPlan>(decision), device,
                                        DeviceAttentionLimits{.max_sequences = spec.batch, .max_kv_tokens = 0});

  const int64_t max_pages = (spec.kv_len + spec.page_size - 1) / spec.page_size;
  const int64_t page_bytes = page_format::page_bytes(problem_.kv);
  const int64_t pool_pages = pages.size() / page_bytes;
  check(spec.batch * max_pages <= pool_pages, "pages of ", spec.name, " ", spec.batch * max_pages,
        ": expected at most ", pool_pages);
  table_.resize(static_cast<size_t>(pool_pages));
  std::iota(table_.begin(), table_.end(), 0);
  std::shuffle(table_.begin(), table_.end(), std::mt19937(5));
  table_.resize(static_cast<size_t>(spec.batch * max_pages));
  std::vector<int32_t> query_start;
  for (int b = 0; b <= spec.batch; ++b) query_start.push_back(b * spec.query_len);

  const int64_t tokens = int64_t{spec.batch} * spec.query_len;
  const int64_t row = int64_t{spec.num_q_heads} * spec.head_dim;
  q_ = DeviceBuffer<__nv_bfloat16>(tokens * row);
  out_ = DeviceBuffer<__nv_bfloat16>(tokens * row);
  lse_ = DeviceBuffer<float>(tokens * spec.num_q_heads);
  fill_normal_bf16(q_.data(), q_.size(), 77, stream);
  block_table_ = upload(table_);
  seq_lens_ = upload(std::vector<int32_t>(static_cast<size_t>(spec.batch), spec.kv_len));
  query_start_ = upload(query_start);
  const Device gpu{.kind = Device::Kind::kCuda, .index = device.index};
  args_.q = ConstTensorView(q_.data(), DType::kBF16, {tokens, spec.num_q_heads, spec.head_dim}, gpu);
  args_.pages = ConstTensorView(pages.data(), DType::kU8, {pool_pages, page_bytes}, gpu);
  args_.block_table = ConstTensorView(block_table_.data(), DType::kI32, {spec.batch, max_pages}, gpu);
  args_.seq_lens = ConstTensorView(seq_lens_.data(), DType::kI32, {spec.batch}, gpu);
  args_.query_start = ConstTensorView(query_start_.data(), DType::kI32, {spec.batch + 1}, gpu);
  args_.softmax_scale = 1.0F / std::sqrt(static_cast<float>(spec.head_dim));
  args_.out = TensorView(out_.data(), DType::kBF16, {tokens, spec.num_q_heads, spec.head_dim}, gpu);
  args_.lse = TensorView(lse_.data(), DType::kF32, {tokens, spec.num_q_heads}, gpu);
  attention_->schedule(args_, stream);
  check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

double PrefillCase::flops() const {
  double pairs = 0.0;
  for (int token = 0; token < spec_.query_len; ++token) {
    const int keys = spec_.kv_len - spec_.query_len + token + 1;
    pairs += spec_.window > 0 ? std::min(keys, spec_.window) : keys;
  }
  return 4.0 * spec_.head_dim * pairs * spec_.num_q_heads * spec_.batch;
}

double PrefillCase::kv_bytes() const {
  return 2.0 * spec_.head_dim * spec_.num_kv_heads * spec_.kv_len * spec_.batch;
}

std::vector<float> PrefillCase::read_keys(int head, int64_t tokens, bool values) {
  const KvLayout& layout = problem_.kv;
  const int64_t stride = page_format::page_bytes(layout);
  std::vector<uint8_t> page(static_cast<size_t>(stride));
  std::vector<float> result;
  for (int64_t token = 0; token < tokens; ++token) {
    const auto in_page = static_cast<int>(token % layout.page_size);
    if (in_page == 0) {
      const int64_t id = table_[static_cast<size_t>(token / layout.page_size)];
      check_cuda(cudaMemcpy(page.data(), pages_.data() + id * stride, page.size(), cudaMemcpyDeviceToHost),
                 "cudaMemcpy");
    }
    for (int d = 0; d < spec_.head_dim; ++d) {
      const int64_t offset =
          values ? page_format::v_offset(layout, head, in_page, d) : page_format::k_offset(layout, head, in_page, d);
      result.push_back(e4m3_decode(page[static_cast<size_t>(offset)]));
    }
  }
  return result;
}

double PrefillCase::relative_l2() {
  check_cuda(cudaMemset(out_.data(), 0xFF, out_.bytes()), "cudaMemset");
  attention_->run(args_, stream_);
  check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  const int group = spec_.num_q_heads / spec_.num_kv_heads;
  const int64_t row = int64_t{spec_.num_q_heads} * spec_.head_dim;
  double error = 0.0;
  double square = 0.0;
  for (const int head : {0, spec_.num_kv_heads - 1}) {
    const std::vector<float> k = read_keys(head, spec_.kv_len, false);
    const std::vector<float> v = read_keys(head, spec_.kv_len, true);
    for (const int part : {1, 2, 3, 4, 5, 6, 7, 8}) {  // eight tokens of the first sequence
      const int token = spec_.query_len * part / 8 - 1;
      const int64_t keys = spec_.kv_len - spec_.query_len + token + 1;
      const int64_t offset = token * row + int64_t{head} * group * spec_.head_dim;
      const std::vector<float> q = download(q_, offset, int64_t{group} * spec_.head_dim);
      const std::vector<float> out = download(out_, offset, int64_t{group} * spec_.head_dim);
      OracleInput input;
      input.num_q_heads = group;
      input.head_dim_k = input.head_dim_v = spec_.head_dim;
      input.q = q;
      input.k = std::span(k).first(static_cast<size_t>(keys * spec_.head_dim));
      input.v = std::span(v).first(static_cast<size_t>(keys * spec_.head_dim));
      input.softmax_scale = static_cast<double>(args_.softmax_scale);
      input.window = spec_.window;
      const OracleOutput expected = attention_oracle(input);
      for (size_t i = 0; i < out.size(); ++i) {
        error += std::pow(static_cast<double>(out[i]) - expected.out[i], 2);
        square += expected.out[i] * expected.out[i];
      }
    }
  }
  return std::sqrt(error / square);
}

}  // namespace quaver::bench
