// DirectAttention, and its CPU backend: pack, then run_attention().
#include <vector>

#include "attention/checks.h"
#include "attention/direct/backend.h"
#include "attention/policy.h"
#include "core/check.h"
#include "kv_cache/page_format.h"
#include "kv_cache/scales.h"

namespace quaver {
namespace direct {
namespace {

void check_scale_values(const char* name, const ConstTensorView& scales) {
  for (int64_t head = 0; scales.given() && head < scales.dim(0); ++head) {
    const float scale = static_cast<const float*>(scales.data)[head * scales.stride(0)];
    if (!is_scale(scale)) check_scale(concat(name, "[", head, "]"), scale);
  }
}

class CpuBackend final : public DirectAttention::Backend {
 public:
  void run(AttentionProblem problem, const DirectAttentionArgs& args, void* /*stream*/) override {
    problem.arch = 0;
    const AttentionPlan plan = plan_or_throw(problem);
    const CallShape shape = check_call(problem, args, {});
    if (shape.num_sequences == 0) return;
    const ConstTensorView q = dense_q(args, shape);
    make_tables(args, shape, problem.kv.page_size);
    pages_.resize(static_cast<size_t>(shape.num_pages(problem.kv.page_size) * page_format::page_bytes(problem.kv)));
    const AttentionArgs paged = paged_args(problem, args, shape, q,
                                           {.pages = pages_.data(),
                                            .block_table = block_table_.data(),
                                            .seq_lens = seq_lens_.data(),
                                            .query_start = query_start_.data()});
    check_tensors(problem, paged);
    check_scale_values("k_scale", args.k_scale);
    check_scale_values("v_scale", args.v_scale);
    pack_kv(kv_pack(problem, args, shape, pages_.data()));
    run_attention(problem, plan, paged);
  }

 private:
  /// Q as it is where the kernels can read it, else a copy.
  ConstTensorView dense_q(const DirectAttentionArgs& args, const CallShape& shape) {
    const ConstTensorView& q = args.q;
    const auto merged = flat(q, shape.batched);
    const bool f32 = q.dtype == DType::kF32;
    if (merged && (f32 || q.dtype == DType::kBF16) && q.stride(q.rank - 1) == 1) return *merged;
    const auto size = static_cast<size_t>(q.num_elements());
    QPack pack{.q = source_of(q),
               .queries = shape.queries(static_cast<const int32_t*>(args.query_start.data)),
               .num_tokens = shape.num_queries};
    if (f32) {
      q_f32_.resize(size);
      pack.out_f32 = q_f32_.data();
    } else {
      q_bf16_.resize(size);
      pack.out = q_bf16_.data();
    }
    pack_q(pack);
    const void* const data = f32 ? static_cast<const void*>(q_f32_.data()) : q_bf16_.data();
    return {data, f32 ? DType::kF32 : DType::kBF16, {shape.num_queries, q.dim(q.rank - 2), q.dim(q.rank - 1)}};
  }

  void make_tables(const DirectAttentionArgs& args, const CallShape& shape, int page_size) {
    const Sequences queries = shape.queries(static_cast<const int32_t*>(args.query_start.data));
    const Sequences keys = shape.keys(static_cast<const int32_t*>(args.key_start.data));
    const int64_t width = shape.max_pages(page_size);
    seq_lens_.clear();
    query_start_.clear();
    block_table_.assign(static_cast<size_t>(shape.num_sequences * width), -1);
    for (int64_t b = 0; b < shape.num_sequences; ++b) {
      query_start_.push_back(static_cast<int32_t>(queries.start(b)));
      seq_lens_.push_back(static_cast<int32_t>(keys.length(b)));
      for (int64_t page = 0; page * page_size < keys.length(b); ++page) {
        block_table_[static_cast<size_t>(b * width + page)] =
            static_cast<int32_t>(first_page(keys, b, page_size) + page);
      }
    }
    query_start_.push_back(static_cast<int32_t>(queries.start(shape.num_sequences)));
  }

  std::vector<uint8_t> pages_;
  std::vector<int32_t> block_table_;
  std::vector<int32_t> seq_lens_;
  std::vector<int32_t> query_start_;
  std::vector<Bf16> q_bf16_;
  std::vector<float> q_f32_;
};

}  // namespace

std::unique_ptr<DirectAttention::Backend> make_cpu_backend() {
  return std::make_unique<CpuBackend>();
}

}  // namespace direct

DirectAttention::DirectAttention(Device device)
    : backend_(device.kind == Device::Kind::kCpu ? direct::make_cpu_backend()
                                                 : direct::make_cuda_backend(device.index)) {}
DirectAttention::~DirectAttention() = default;
DirectAttention::DirectAttention(DirectAttention&&) noexcept = default;
DirectAttention& DirectAttention::operator=(DirectAttention&&) noexcept = default;

void DirectAttention::run(AttentionProblem problem, const DirectAttentionArgs& args, void* stream) {
  backend_->run(problem, args, stream);
}

}  // namespace quaver
