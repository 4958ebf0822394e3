// One CTA turns device-side lengths into the work list of a step. Two phases: a running prefix sum over the sequences
// (any number of them: the sums live in global memory), then a binary search for the start of
// every piece and the first step of its walk.
#include <climits>

#include "attention/schedule/work_list.h"
#include "ptx/launch.cuh"

namespace quaver::schedule {
namespace {

constexpr int kThreads = 1024;
constexpr unsigned kAllLanes = 0xFFFFFFFFU;

struct KernelParameters {
  ScheduleShape shape{};
  ScheduleInput input{};
  int2* prefix = nullptr;
  PieceRecord* records = nullptr;
  CutRecord* cuts = nullptr;
  int* num_cuts = nullptr;
  int grid = 0;
  int max_pieces = 0;
  int64_t max_fixed_slots = 0;
};

__device__ SequenceWork load_work(const KernelParameters& p, int sequence) {
  const SequenceLengths& lengths = p.input.lengths;
  return sequence_work(p.shape, p.shape.kv_tile, lengths.query_start[sequence], lengths.query_start[sequence + 1],
                       lengths.seq_lens[sequence]);
}

/// prefix[b] = {units, fixed slots} of one kv head of the sequences before b.
__device__ void prefix_sums(const KernelParameters& p) {
  __shared__ unsigned long long warp_sums[kThreads / 32];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  unsigned long long before = 0;  // both sums in one word: slots above, units below
  for (int base = 0; base < p.input.lengths.num_sequences; base += kThreads) {
    const int sequence = base + static_cast<int>(threadIdx.x);
    unsigned long long own = 0;
    if (sequence < p.input.lengths.num_sequences) {
      const SequenceWork work = load_work(p, sequence);
      own = static_cast<unsigned long long>(work.fixed_slots()) << 32 | static_cast<unsigned>(work.units());
    }
    unsigned long long inclusive = own;
    for (int distance = 1; distance < 32; distance *= 2) {
      const unsigned long long other = __shfl_up_sync(kAllLanes, inclusive, distance);
      if (lane >= distance) inclusive += other;
    }
    if (lane == 31) warp_sums[warp] = inclusive;
    __syncthreads();
    unsigned long long exclusive = before + inclusive - own;
    for (int w = 0; w < kThreads / 32; ++w) {
      if (w < warp) exclusive += warp_sums[w];
      before += warp_sums[w];
    }
    if (sequence < p.input.lengths.num_sequences) {
      p.prefix[sequence] = make_int2(static_cast<int>(exclusive), static_cast<int>(exclusive >> 32));
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    p.prefix[p.input.lengths.num_sequences] = make_int2(static_cast<int>(before), static_cast<int>(before >> 32));
    // 2^31 units are 64 TB of KV at head dim 256; slots beyond the workspace would be written out of bounds.
    const auto heads = static_cast<unsigned long long>(p.shape.num_kv_heads);
    const bool too_long = (before & 0xFFFFFFFFU) * heads > static_cast<unsigned long long>(INT_MAX);
    if (too_long || (before >> 32) * heads > static_cast<unsigned long long>(p.max_fixed_slots)) __trap();
  }
  __syncthreads();
}

/// The prefix sums, as begin_piece() asks for them.
struct PrefixSums {
  const KernelParameters& p;
  __device__ int units_before(int sequence) const { return p.prefix[sequence].x; }
  __device__ int slots_before(int sequence) const { return p.prefix[sequence].y; }
  /// Largest b with units_before(b) * heads <= unit.
  __device__ int sequence_of(int unit) const {
    int low = 0;
    int high = p.input.lengths.num_sequences;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (units_before(middle) * p.shape.num_kv_heads <= unit) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return low;
  }
};

/// One thread a piece: its first item. Of a cut item the piece with the second part tells the combine kernel.
__device__ void write_pieces(const KernelParameters& p) {
  __shared__ int num_cuts;
  if (threadIdx.x == 0) num_cuts = 0;
  __syncthreads();
  const PrefixSums prefix{p};
  const int total = prefix.units_before(p.input.lengths.num_sequences) * p.shape.num_kv_heads;
  const int64_t items = int64_t{p.input.lengths.num_sequences} * p.shape.num_kv_heads;
  const LineCut line = cut_line(total, items, p.grid, p.shape.min_piece_units, p.max_pieces / p.grid);
  const int pieces = max(line.num_pieces(), p.grid);
  for (int piece = static_cast<int>(threadIdx.x); piece < pieces; piece += kThreads) {
    WorkWalker walker(p.shape, p.input.lengths, p.shape.kv_tile, p.max_pieces, piece,
                      begin_piece(p.shape, p.input.lengths, line, piece, prefix));
    WorkItem first{};
    if (!walker.next(first)) first.rows = -1;
    p.records[piece].first = first;
    p.records[piece].next = walker.state();
    if (!p.shape.fixed_splits && first.rows > 0 && first.num_parts > 1 && first.part == 1) {
      p.cuts[atomicAdd(&num_cuts, 1)] = {.num_parts = first.num_parts,
                                         .sequence = first.sequence,
                                         .head = first.head,
                                         .query_begin = first.query_begin,
                                         .rows = first.rows,
                                         .slots = {.first = first.first_slot, .rest = first.rest_slot}};
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) *p.num_cuts = num_cuts;
}

/// kRecordPages threads a piece look up the page ids of its first tiles.
__device__ void write_page_ids(const KernelParameters& p) {
  const int pieces = max(p.records[0].next.line.num_pieces(), p.grid);
  for (int i = static_cast<int>(threadIdx.x); i < pieces * kRecordPages; i += kThreads) {
    PieceRecord& record = p.records[i / kRecordPages];
    const WorkItem& item = record.first;
    const int token = max(item.tile_begin * p.shape.kv_tile, item.first_key);
    const int entry = token / p.shape.page_size + i % kRecordPages;
    const bool used = item.rows > 0 && int64_t{entry} * p.shape.page_size < item.kv_len;
    record.page_ids[i % kRecordPages] =
        used ? p.input.block_table[item.sequence * p.input.block_table_stride + entry] : 0;
  }
}

__global__ void __launch_bounds__(kThreads) quaver_schedule(const __grid_constant__ KernelParameters p) {
  ptx::launch_dependents();
  ptx::grid_dependency_wait();
  prefix_sums(p);
  write_pieces(p);
  write_page_ids(p);
}

}  // namespace

WorkList::WorkList(const ScheduleShape& shape, int64_t max_sequences, int grid, int max_rounds, int64_t max_fixed_slots)
    : shape_(shape),
      grid_(grid),
      max_fixed_slots_(max_fixed_slots),
      prefix_(max_sequences + 1),
      records_(int64_t{grid} * max_rounds),
      cuts_(int64_t{grid} * max_rounds),
      counters_(2) {}

void WorkList::schedule(const ScheduleInput& input, int max_rows, cudaStream_t stream) {
  check(input.lengths.num_sequences >= 0 && input.lengths.num_sequences < prefix_.size(), "num_sequences ",
        input.lengths.num_sequences, ": expected 0 ... ", prefix_.size() - 1);
  ScheduleShape shape = shape_;
  shape.max_rows = max_rows;
  launch_programmatic(quaver_schedule, dim3(1), kThreads, 0, stream,
                      KernelParameters{.shape = shape,
                                       .input = input,
                                       .prefix = prefix_.data(),
                                       .records = records_.data(),
                                       .cuts = cuts_.data(),
                                       .num_cuts = counters_.data(),
                                       .grid = grid_,
                                       .max_pieces = static_cast<int>(records_.size()),
                                       .max_fixed_slots = max_fixed_slots_});
}

WorkListView WorkList::view() const {
  return {.records = records_.data(),
          .cuts = {.records = cuts_.data(), .count = counters_.data()},
          .ticket = counters_.data() + 1,
          .max_pieces = static_cast<int>(records_.size())};
}

}  // namespace quaver::schedule
