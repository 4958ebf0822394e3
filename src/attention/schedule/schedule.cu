// One CTA turns device-side lengths into the work list of a step. Two phases: a running prefix sum over the sequences
// (any number of them: the sums live in global memory), then a binary search for the start of every piece.
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
  int max_pieces = 0;
  int64_t max_fixed_slots = 0;
};

__device__ SequenceWork load_work(const KernelParameters& p, int sequence) {
  return sequence_work(p.shape, p.shape.kv_tile, p.input.query_start[sequence], p.input.query_start[sequence + 1],
                       p.input.seq_lens[sequence]);
}

/// prefix[b] = {units, fixed slots} of one kv head of the sequences before b.
__device__ void prefix_sums(const KernelParameters& p) {
  __shared__ unsigned long long warp_sums[kThreads / 32];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  unsigned long long before = 0;  // both sums in one word: slots above, units below
  for (int base = 0; base < p.input.num_sequences; base += kThreads) {
    const int sequence = base + static_cast<int>(threadIdx.x);
    unsigned long long own = 0;
    if (sequence < p.input.num_sequences) {
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
    if (sequence < p.input.num_sequences) {
      p.prefix[sequence] = make_int2(static_cast<int>(exclusive), static_cast<int>(exclusive >> 32));
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    p.prefix[p.input.num_sequences] = make_int2(static_cast<int>(before), static_cast<int>(before >> 32));
    // 2^31 units are 64 TB of KV at head dim 256; slots beyond the workspace would be written out of bounds.
    const auto heads = static_cast<unsigned long long>(p.shape.num_kv_heads);
    const bool too_long = (before & 0xFFFFFFFFU) * heads > static_cast<unsigned long long>(INT_MAX);
    if (too_long || (before >> 32) * heads > static_cast<unsigned long long>(p.max_fixed_slots)) __trap();
  }
  __syncthreads();
}

/// Largest b with prefix[b] * heads <= unit.
__device__ int sequence_of(const KernelParameters& p, int unit) {
  int low = 0;
  int high = p.input.num_sequences;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (p.prefix[middle].x * p.shape.num_kv_heads <= unit) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/// An item is cut at the boundary in front of `piece` (which begins `offset` units into it): tell the piece where the
/// item's first tile lies, unless an earlier boundary did.
__device__ void write_cut(const KernelParameters& p, const PieceRecord& record, const SequenceWork& work, int piece,
                          int offset) {
  CutRecord cut{};
  if (piece < record.pieces && work.num_tiles() > 0 && offset > kItemOverhead && work.query_len > 0) {
    const int item_begin = record.begin - offset;
    const auto first = tiles::even_cut_owner(record.total, record.pieces, item_begin + kItemOverhead);
    const auto last = tiles::even_cut_owner(record.total, record.pieces, item_begin + work.units() - 1);
    if (first == piece - 1) {
      cut = {.num_parts = static_cast<int>(last - first) + 1,
             .sequence = record.sequence,
             .head = record.head,
             .query_begin = work.query_begin,
             .rows = work.query_len * p.shape.group};
    }
  }
  p.cuts[piece - 1] = cut;
}

/// kRecordPages threads a piece: one writes the record, each looks up one page id.
__device__ void write_records(const KernelParameters& p) {
  const int total = p.prefix[p.input.num_sequences].x * p.shape.num_kv_heads;
  const int pieces = max(1, min(p.max_pieces, total / kMinPieceUnits));
  // One record past the last piece exists only to see whether the last boundary cuts an item (it does not).
  for (int i = static_cast<int>(threadIdx.x); i < (p.max_pieces + 1) * kRecordPages; i += kThreads) {
    const int piece = i / kRecordPages;
    const int page = i % kRecordPages;
    PieceRecord record{.begin = total, .end = total, .total = total, .pieces = pieces};
    SequenceWork work{};
    UnitPlace place{};
    if (piece < pieces && total > 0) {
      record.begin = static_cast<int>(tiles::even_cut(total, pieces, piece));
      record.end = static_cast<int>(tiles::even_cut(total, pieces, piece + 1));
      record.sequence = sequence_of(p, record.begin);
      work = load_work(p, record.sequence);
      const int2 before = p.prefix[record.sequence];
      const int unit = record.begin - before.x * p.shape.num_kv_heads;
      record.head = unit / work.units();
      record.unit = unit % work.units();
      record.kv_len = work.kv_len;
      record.query_begin = work.query_begin;
      record.query_end = work.query_begin + work.query_len;
      record.slot = before.y * p.shape.num_kv_heads;
      place = place_unit(work, p.shape.kv_tile, record.unit);
      const auto span = item_tiles(work, p.shape.kv_tile, place.split);
      const int64_t tile = span.first + max(0, place.offset - kItemOverhead);
      record.first_page = static_cast<int>(max(tile * p.shape.kv_tile, int64_t{work.first_key}) / p.shape.page_size);
    }
    if (page == 0 && piece > 0 && !p.shape.fixed_splits) write_cut(p, record, work, piece, place.offset);
    if (piece == p.max_pieces) continue;
    if (page == 0) {
      for (int word = 0; word < 3; ++word) {
        reinterpret_cast<int4*>(&p.records[piece])[word] = reinterpret_cast<const int4*>(&record)[word];
      }
    }
    const int64_t entry = record.first_page + page;
    const bool used = entry * p.shape.page_size < work.kv_len;
    p.records[piece].page_ids[page] =
        used ? p.input.block_table[record.sequence * p.input.block_table_stride + entry] : 0;
  }
}

__global__ void __launch_bounds__(kThreads) quaver_schedule(const __grid_constant__ KernelParameters p) {
  ptx::launch_dependents();
  ptx::grid_dependency_wait();
  prefix_sums(p);
  write_records(p);
}

}  // namespace

WorkList::WorkList(const ScheduleShape& shape, int64_t max_sequences, int max_pieces, int64_t max_fixed_slots)
    : shape_(shape),
      max_fixed_slots_(max_fixed_slots),
      prefix_(max_sequences + 1),
      records_(max_pieces),
      cuts_(max_pieces) {}

void WorkList::schedule(const ScheduleInput& input, cudaStream_t stream) {
  check(input.num_sequences >= 0 && input.num_sequences < prefix_.size(), "num_sequences ", input.num_sequences,
        ": expected 0 ... ", prefix_.size() - 1);
  launch_programmatic(quaver_schedule, dim3(1), kThreads, 0, stream,
                      KernelParameters{.shape = shape_,
                                       .input = input,
                                       .prefix = prefix_.data(),
                                       .records = records_.data(),
                                       .cuts = cuts_.data(),
                                       .max_pieces = static_cast<int>(records_.size()),
                                       .max_fixed_slots = max_fixed_slots_});
}

WorkListView WorkList::view() const {
  return {.records = records_.data(), .cuts = cuts_.data(), .max_pieces = static_cast<int>(records_.size())};
}

}  // namespace quaver::schedule
