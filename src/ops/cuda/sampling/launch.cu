#include "ops/cuda/sampling/launch.h"

#include <algorithm>

#include "core/cuda.h"
#include "ops/cuda/sampling/chunks_kernel.cuh"
#include "ops/cuda/sampling/cut_kernel.cuh"
#include "ops/cuda/sampling/draw_kernel.cuh"
#include "ops/cuda/sampling/logprobs_kernel.cuh"
#include "ops/cuda/sampling/slots_kernel.cuh"

namespace quaver::sampling {
namespace {

unsigned ctas(int64_t items, int each) {
  return static_cast<unsigned>((items + each - 1) / each);
}

/// Entries in pieces that fit into kernel parameters.
template <class Parameters, class Entry, class To>
void send(void (*kernel)(Parameters), To* to, std::span<const Entry> entries, bool advance, cudaStream_t stream) {
  for (size_t first = 0; first < entries.size(); first += kSent) {
    Parameters piece{.to = advance ? to + first : to,
                     .count = static_cast<int32_t>(std::min<size_t>(kSent, entries.size() - first))};
    std::copy_n(entries.begin() + static_cast<int64_t>(first), piece.count, piece.entries);
    launch_programmatic(kernel, 1, kSlotThreads, 0, stream, piece);
  }
}

}  // namespace

void prepare_kernels() {
  check_cuda(cudaFuncSetAttribute(quaver_sampling_cut, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(CutShared)),
             "cudaFuncSetAttribute");
}

void launch_draw(const Parameters& p, int64_t rows, bool cuts, cudaStream_t stream) {
  const auto y = static_cast<unsigned>(rows);
  launch_programmatic(quaver_sampling_chunks, dim3(ctas(p.chunks, kChunkWarps), y), 32 * kChunkWarps, 0, stream, p);
  if (cuts) launch_programmatic(quaver_sampling_cut, y, kCutThreads, sizeof(CutShared), stream, p);
  launch_programmatic(quaver_sampling_draw, y, 32 * kDrawWarps, 0, stream, p);
  if (p.logprobs) launch_programmatic(quaver_sampling_logprobs, dim3(y, 2), 32 * kLogprobWarps, 0, stream, p);
}

void launch_feedback(const Slot* slots, const int32_t* row_slots, int64_t count, int32_t* token_ids,
                     cudaStream_t stream) {
  const FeedbackParameters p{.slots = slots, .row_slots = row_slots, .token_ids = token_ids, .count = count};
  launch_programmatic(quaver_sampling_feedback, ctas(count, kSlotThreads), kSlotThreads, 0, stream, p);
}

void launch_start(Slot* to, const Slot& slot, cudaStream_t stream) {
  launch_programmatic(quaver_sampling_start, 1, 1, 0, stream, SlotParameters{.to = to, .slot = slot});
}

void launch_marks(uint16_t* to, std::span<const Mark> marks, cudaStream_t stream) {
  send(quaver_sampling_mark, to, marks, false, stream);
}

void launch_biases(TokenLogit* to, std::span<const TokenLogit> biases, cudaStream_t stream) {
  send(quaver_sampling_biases, to, biases, true, stream);
}

}  // namespace quaver::sampling
