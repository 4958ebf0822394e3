// The GPU backend of DirectAttention: pack, then DeviceAttention.
#include <bit>
#include <list>

#include "attention/checks.h"
#include "attention/device_attention.h"
#include "attention/direct/backend.h"
#include "attention/direct/device_pack.h"
#include "attention/policy.h"
#include "attention/tiles.h"
#include "core/cuda.h"
#include "kv_cache/page_format.h"

namespace quaver::direct {
namespace {

constexpr size_t kMostPlans = 8;

/// Makes a device current for as long as it lives.
class CurrentDevice {
 public:
  explicit CurrentDevice(int index) {
    check_cuda(cudaGetDevice(&before_), "cudaGetDevice");
    check_cuda(cudaSetDevice(index), "cudaSetDevice");
  }
  ~CurrentDevice() { static_cast<void>(cudaSetDevice(before_)); }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  CurrentDevice(CurrentDevice&&) = delete;
  CurrentDevice& operator=(CurrentDevice&&) = delete;

 private:
  int before_ = 0;
};

/// Memory for at least `count` elements, with room to grow into. What is given back is no longer in use: cudaFree
/// waits.
template <class T>
T* at_least(DeviceBuffer<T>& buffer, int64_t count) {
  if (buffer.size() < count) {
    buffer = {};
    buffer = DeviceBuffer<T>(count + count / 4);
  }
  return buffer.data();
}

int64_t rounded_up(int64_t count) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(count)));
}

class CudaBackend final : public DirectAttention::Backend {
 public:
  explicit CudaBackend(int index) : device_(query_device(index)) {}
  ~CudaBackend() override {  // memory goes back to the device it came from
    int before = 0;
    static_cast<void>(cudaGetDevice(&before));
    static_cast<void>(cudaSetDevice(device_.index));
    plans_.clear();
    memory_ = {};
    static_cast<void>(cudaSetDevice(before));
  }
  CudaBackend(const CudaBackend&) = delete;
  CudaBackend& operator=(const CudaBackend&) = delete;
  CudaBackend(CudaBackend&&) = delete;
  CudaBackend& operator=(CudaBackend&&) = delete;

  void run(AttentionProblem problem, const DirectAttentionArgs& args, void* stream) override {
    problem.arch = device_.arch;
    const CurrentDevice current(device_.index);
    const CallShape shape = check_call(problem, args, {.kind = Device::Kind::kCuda, .index = device_.index});
    if (shape.num_sequences == 0 || shape.num_queries == 0) return;
    DeviceAttention& attention = attention_for(problem, shape);
    auto* const cuda_stream = static_cast<cudaStream_t>(stream);

    const int page_size = problem.kv.page_size;
    const int64_t page_bytes = page_format::page_bytes(problem.kv);
    const auto* const query_start = static_cast<const int32_t*>(args.query_start.data);
    const auto* const key_start = static_cast<const int32_t*>(args.key_start.data);
    TablesPack tables{.queries = shape.queries(query_start),
                      .keys = shape.keys(key_start),
                      .page_size = page_size,
                      .table_width = shape.max_pages(page_size),
                      .block_table = at_least(memory_.block_table, shape.num_sequences * shape.max_pages(page_size)),
                      .seq_lens = at_least(memory_.seq_lens, shape.num_sequences),
                      .query_start = shape.batched ? at_least(memory_.query_start, shape.num_sequences + 1) : nullptr};
    uint8_t* const pages = at_least(memory_.pages, shape.num_pages(page_size) * page_bytes);
    const bool as_it_is = q_as_it_is(args.q, shape);
    QPack q_pack{.q = source_of(args.q), .queries = tables.queries, .num_tokens = shape.num_queries};
    if (!as_it_is) q_pack.out = at_least(memory_.q, args.q.num_elements());
    const ConstTensorView q = as_it_is
                                  ? *flat(args.q, shape.batched)
                                  : ConstTensorView(q_pack.out, DType::kBF16,
                                                    {shape.num_queries, q_pack.q.heads, q_pack.q.dim}, args.q.device);
    const AttentionArgs paged = paged_args(problem, args, shape, q,
                                           {.pages = pages,
                                            .block_table = tables.block_table,
                                            .seq_lens = tables.seq_lens,
                                            .query_start = shape.batched ? tables.query_start : query_start});
    check_tensors(problem, paged);

    make_tables(tables, cuda_stream);
    pack_kv(kv_pack(problem, args, shape, pages), cuda_stream);
    if (!as_it_is) pack_q(q_pack, cuda_stream);
    attention.schedule(paged, cuda_stream);
    attention.run(paged, cuda_stream);
  }

 private:
  /// A plan with its work list, and what it was made for.
  struct Planned {
    AttentionProblem problem;
    DeviceAttentionLimits limits;
    DeviceAttention attention;
  };

  /// BF16 rows at addresses that every kernel takes.
  static bool q_as_it_is(const ConstTensorView& q, const CallShape& shape) {
    constexpr int64_t kElements = 8;  // 16 bytes
    const auto merged = flat(q, shape.batched);
    return merged && q.dtype == DType::kBF16 && merged->stride(2) == 1 && merged->stride(1) % kElements == 0 &&
           merged->stride(0) % kElements == 0 && reinterpret_cast<uintptr_t>(q.data) % 16 == 0;
  }

  /// The plan of a problem, kept for the next call: those used last, for sizes up to the largest so far.
  DeviceAttention& attention_for(AttentionProblem problem, const CallShape& shape) {
    // A plan depends on whether the decode kernel could take the longest sequence, not on its length.
    const int group = problem.num_q_heads / problem.kv.num_kv_heads;
    const bool few_rows = int64_t{group} * problem.max_query_len <= tiles::kMaxDecodeRows;
    problem.max_query_len = few_rows ? tiles::kMaxDecodeRows / group
                                     : static_cast<int>(std::min(rounded_up(problem.max_query_len), int64_t{1} << 30));
    DeviceAttentionLimits limits{.max_sequences = rounded_up(shape.num_sequences),
                                 .max_kv_tokens = problem.batch_invariant ? rounded_up(shape.num_keys) : 0,
                                 .max_tokens = problem.bidirectional_spans ? rounded_up(shape.num_queries) : 0};
    for (auto each = plans_.begin(); each != plans_.end(); ++each) {
      if (each->problem != problem) continue;
      plans_.splice(plans_.begin(), plans_, each);
      DeviceAttentionLimits both = each->limits;
      both.max_sequences = std::max(both.max_sequences, limits.max_sequences);
      both.max_kv_tokens = std::max(both.max_kv_tokens, limits.max_kv_tokens);
      both.max_tokens = std::max(both.max_tokens, limits.max_tokens);
      if (both == each->limits) return each->attention;
      limits = both;
      plans_.pop_front();
      break;
    }
    const AttentionPlan plan = plan_or_throw(problem);
    if (plans_.size() == kMostPlans) plans_.pop_back();
    plans_.push_front({.problem = problem, .limits = limits, .attention = {problem, plan, device_, limits}});
    return plans_.front().attention;
  }

  struct Memory {
    DeviceBuffer<uint8_t> pages;
    DeviceBuffer<int32_t> block_table;
    DeviceBuffer<int32_t> seq_lens;
    DeviceBuffer<int32_t> query_start;
    DeviceBuffer<Bf16> q;
  };

  DeviceInfo device_;
  std::list<Planned> plans_;
  Memory memory_;
};

}  // namespace

std::unique_ptr<DirectAttention::Backend> make_cuda_backend(int index) {
  return std::make_unique<CudaBackend>(index);
}

}  // namespace quaver::direct
