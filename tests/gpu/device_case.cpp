#include "device_case.h"

#include <cstring>
#include <numeric>

#include "attention/tiles.h"
#include "kv_cache/page_format.h"

namespace quaver::testing {
namespace {

const Device kGpu{.kind = Device::Kind::kCuda, .index = 0};

int64_t view_bytes(const ConstTensorView& view) {
  return view.num_elements() * dtype_bytes(view.dtype);
}

}  // namespace

AttentionPlan decode_plan(const AttentionProblem& problem, Precision precision, bool batch_invariant) {
  return {.kernel = AttentionKernel::kDecodeFp8,
          .precision = precision,
          .kv_tile = tiles::kv_tile(tiles::KernelFamily::kDecode, problem.kv.head_dim_k),
          .max_rows = tiles::kMaxDecodeRows,
          .split_tokens = batch_invariant ? tiles::kFixedSplitTokens : 0,
          .promote_qk = problem.kv.head_dim_k >= 256,
          .reason = {}};
}

AttentionPlan prefill_plan(AttentionProblem& problem, Precision precision) {
  problem.kernel = AttentionKernel::kPrefillFp8;
  return {
      .kernel = AttentionKernel::kPrefillFp8,
      .precision = precision,
      .kv_tile = tiles::kv_tile(tiles::KernelFamily::kPrefill, problem.kv.head_dim_k),
      .max_rows = 0,
      .split_tokens = 0,
      .promote_qk = problem.kv.head_dim_k == 512 || (precision == Precision::kSplit && problem.kv.head_dim_k >= 256),
      .reason = {}};
}

std::vector<PrefillMode> prefill_modes() {
  std::vector<PrefillMode> modes;
  for (const int head_dim : tiles::kKernelHeadDims) {
    for (const Precision precision : {Precision::kSingle, Precision::kSplit}) modes.push_back({head_dim, precision});
  }
  return modes;
}

void PrintTo(const PrefillMode& mode, std::ostream* out) {
  *out << "d" << mode.head_dim << " " << precision_name(mode.precision);
}

std::vector<float> Outputs::values() const {
  if (!f32.empty()) return f32;
  std::vector<float> floats;
  for (const Bf16 x : bf16) floats.push_back(to_float(x));
  return floats;
}

bool operator==(const Outputs& a, const Outputs& b) {
  const auto same = [](const auto& x, const auto& y) {
    return x.size() == y.size() && (x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof(x[0])) == 0);
  };
  return same(a.bf16, b.bf16) && same(a.f32, b.f32) && same(a.lse, b.lse);
}

const void* DeviceCase::keep(const ConstTensorView& host) {
  if (!host.given()) return nullptr;
  DeviceBuffer<uint8_t>& buffer = buffers_.emplace_back(std::max<int64_t>(view_bytes(host), 16));
  check_cuda(cudaMemcpy(buffer.data(), host.data, static_cast<size_t>(view_bytes(host)), cudaMemcpyHostToDevice),
             "cudaMemcpy");
  return buffer.data();
}

DeviceCase::DeviceCase(const Case& host) : problem(host.problem), args(host.args) {
  problem.arch = 90;
  limits_ = {.max_sequences = static_cast<int64_t>(host.seq_lens.size()),
             .max_kv_tokens = std::accumulate(host.seq_lens.begin(), host.seq_lens.end(), int64_t{0}),
             .max_tokens = args.q.dim(0)};
  for (ConstTensorView* view :
       {&args.q, &args.pages, &args.block_table, &args.seq_lens, &args.query_start, &args.k_scale, &args.v_scale,
        &args.q_descale, &args.k_descale, &args.v_descale, &args.sinks, &args.span_ids}) {
    view->data = keep(*view);
    view->device = kGpu;
  }
  out_ = DeviceBuffer<uint8_t>(std::max<int64_t>(view_bytes(args.out), 16));
  lse_ = DeviceBuffer<float>(std::max<int64_t>(args.lse.num_elements(), 4));
  args.out.data = out_.data();
  args.lse.data = lse_.data();
  args.out.device = args.lse.device = kGpu;
  poison();
}

void DeviceCase::poison() {
  check_cuda(cudaMemset(out_.data(), 0xFF, out_.bytes()), "cudaMemset");
  check_cuda(cudaMemset(lse_.data(), 0xFF, lse_.bytes()), "cudaMemset");
  check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

Outputs DeviceCase::outputs() const {
  check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  Outputs result;
  const auto count = static_cast<size_t>(args.out.num_elements());
  const std::vector<uint8_t> bytes = to_host(out_);
  if (args.out.dtype == DType::kF32) {
    result.f32.resize(count);
    std::memcpy(result.f32.data(), bytes.data(), 4 * count);
  } else {
    result.bf16.resize(count);
    std::memcpy(result.bf16.data(), bytes.data(), 2 * count);
  }
  result.lse = to_host(lse_);
  result.lse.resize(static_cast<size_t>(args.lse.num_elements()));
  return result;
}

Outputs DeviceCase::run(DeviceAttention& attention, cudaStream_t stream) {
  poison();
  attention.schedule(args, stream);
  attention.run(args, stream);
  check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  return outputs();
}

Outputs DeviceCase::run(const AttentionPlan& plan) {
  DeviceAttention attention(problem, plan, query_device(0), limits_);
  return run(attention);
}

CudaGraphExec DeviceCase::capture(DeviceAttention& attention, cudaStream_t stream, int runs) {
  return capture_graph(stream, [&](cudaStream_t s) {
    attention.schedule(args, s);
    for (int i = 0; i < runs; ++i) attention.run(args, s);
  });
}

Outputs DeviceCase::replay(const CudaGraphExec& graph, cudaStream_t stream) {
  poison();
  check_cuda(cudaGraphLaunch(graph.get(), stream), "cudaGraphLaunch");
  check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  return outputs();
}

void overwrite(const ConstTensorView& view, const std::vector<int32_t>& values) {
  check_cuda(cudaMemcpy(const_cast<void*>(view.data), values.data(), 4 * values.size(), cudaMemcpyHostToDevice),
             "cudaMemcpy");
}

void expect_same_in_a_large_pool(const Case& host, DeviceCase& device, const AttentionPlan& plan) {
  const Outputs expected = device.run(plan);
  constexpr int64_t kPages = 8300;
  const auto page_bytes = static_cast<size_t>(page_format::page_bytes(host.problem.kv));
  ASSERT_EQ(page_bytes * 4096, size_t{1} << 31);
  const DeviceBuffer<uint8_t> pool(kPages * static_cast<int64_t>(page_bytes));
  check_cuda(cudaMemset(pool.data(), 0x7F, pool.bytes()), "cudaMemset");
  const int32_t placements[3][3] = {{0, 1, 2}, {4095, 4096, 4097}, {8191, 8192, 8299}};
  for (const auto& pages : placements) {
    SCOPED_TRACE(pages[1]);
    std::vector<int32_t> table = host.block_table;
    for (size_t i = 0; i < 3; ++i) {
      check_cuda(cudaMemcpy(pool.data() + page_bytes * static_cast<size_t>(pages[i]),
                            host.pages.data() + page_bytes * static_cast<size_t>(host.block_table[i]), page_bytes,
                            cudaMemcpyHostToDevice),
                 "cudaMemcpy");
      table[i] = pages[i];
    }
    const auto device_table = to_device(table);
    device.args.block_table.data = device_table.data();
    device.args.pages =
        ConstTensorView(pool.data(), DType::kU8, {kPages, static_cast<int64_t>(page_bytes)}, device.args.q.device);
    EXPECT_TRUE(expected == device.run(plan));
  }
}

}  // namespace quaver::testing
