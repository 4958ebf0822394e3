#include "model/staging_ring.h"

#include <algorithm>
#include <cstring>

#include "core/check.h"

namespace quaver {

StagingRing::StagingRing(int64_t slot_bytes, cudaStream_t stream) : slot_bytes_(slot_bytes), stream_(stream) {
  for (Slot& slot : slots_) {
    slot.pinned = PinnedBuffer<uint8_t>(slot_bytes);
    slot.device = DeviceBuffer<uint8_t>(slot_bytes);
  }
}

StagingRing::~StagingRing() {
  static_cast<void>(cudaStreamSynchronize(copies_.get()));
  static_cast<void>(cudaStreamSynchronize(stream_));
}

StagingRing::Slot& StagingRing::next_slot(int64_t bytes) {
  check(bytes > 0 && bytes <= slot_bytes_, "staged bytes ", bytes, ": expected 1 to ", slot_bytes_);
  Slot& slot = slots_.at(next_);
  next_ = (next_ + 1) % slots_.size();
  check_cuda(cudaEventSynchronize(slot.free.get()), "cudaEventSynchronize");
  return slot;
}

void StagingRing::copy(Slot& slot, int64_t bytes, uint8_t* to) {
  check_cuda(cudaMemcpyAsync(to, slot.pinned.data(), static_cast<size_t>(bytes), cudaMemcpyHostToDevice, copies_.get()),
             "cudaMemcpyAsync");
  check_cuda(cudaEventRecord(slot.copied.get(), copies_.get()), "cudaEventRecord");
  check_cuda(cudaStreamWaitEvent(stream_, slot.copied.get(), 0), "cudaStreamWaitEvent");
}

void StagingRing::send(int64_t bytes, uint8_t* to, const Fill& fill) {
  Slot& slot = next_slot(bytes);
  fill(slot.pinned.data());
  copy(slot, bytes, to);
  check_cuda(cudaEventRecord(slot.free.get(), copies_.get()), "cudaEventRecord");
}

void StagingRing::send(int64_t bytes, const Fill& fill, const std::function<void(const uint8_t* on_device)>& use) {
  Slot& slot = next_slot(bytes);
  fill(slot.pinned.data());
  copy(slot, bytes, slot.device.data());
  use(slot.device.data());
  check_cuda(cudaEventRecord(slot.free.get(), stream_), "cudaEventRecord");
}

void copy_parallel(uint8_t* to, const void* from, int64_t bytes) {
  constexpr int64_t kPiece = int64_t{1} << 20;
#pragma omp parallel for schedule(static)
  for (int64_t begin = 0; begin < bytes; begin += kPiece) {
    std::memcpy(to + begin, static_cast<const uint8_t*>(from) + begin,
                static_cast<size_t>(std::min(kPiece, bytes - begin)));
  }
}

}  // namespace quaver
