// Pinned buffers through which host memory streams to the GPU.
#pragma once

#include <array>
#include <cstdint>
#include <functional>

#include "core/cuda.h"

namespace quaver {

/// The host fills one buffer while another is on its way and the GPU works on a third.
class StagingRing {
 public:
  /// Work on what was sent goes to `stream`, which outlives this object.
  StagingRing(int64_t slot_bytes, cudaStream_t stream);
  /// Waits for what is on its way.
  ~StagingRing();
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;
  StagingRing(StagingRing&&) = delete;
  StagingRing& operator=(StagingRing&&) = delete;

  [[nodiscard]] int64_t slot_bytes() const noexcept { return slot_bytes_; }

  using Fill = std::function<void(uint8_t* pinned)>;
  /// `fill` writes `bytes` of host memory that go to `to` on the device.
  void send(int64_t bytes, uint8_t* to, const Fill& fill);
  /// The same into a buffer on the device; `use` launches on the stream what reads it.
  void send(int64_t bytes, const Fill& fill, const std::function<void(const uint8_t* on_device)>& use);

 private:
  struct Slot {
    PinnedBuffer<uint8_t> pinned;
    DeviceBuffer<uint8_t> device;
    CudaEvent copied = make_event();
    CudaEvent free = make_event();
  };
  /// The next slot, once nobody reads it any more.
  Slot& next_slot(int64_t bytes);
  void copy(Slot& slot, int64_t bytes, uint8_t* to);

  int64_t slot_bytes_ = 0;
  cudaStream_t stream_ = nullptr;
  CudaStream copies_ = make_stream();
  std::array<Slot, 3> slots_;
  size_t next_ = 0;
};

/// memcpy by all threads: one alone does not keep up with the bus.
void copy_parallel(uint8_t* to, const void* from, int64_t bytes);

}  // namespace quaver
