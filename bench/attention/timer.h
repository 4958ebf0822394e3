// Times of work on one stream, and the two memory ceilings that results are compared with.
#pragma once

#include <algorithm>
#include <vector>

#include "attention/device_data.h"

namespace quaver::bench {

class Timer {
 public:
  static constexpr int kRepetitions = 21;

  explicit Timer(cudaStream_t stream) : stream_(stream), flush_(kFlushBytes), sink_(4) {}

  /// Median microseconds of `work()` over kRepetitions after 3 to warm up, L2 flushed by reading before each.
  template <class Work>
  [[nodiscard]] double median_us(Work&& work) {
    std::vector<float> times;
    for (int i = 0; i < kRepetitions + 3; ++i) {
      read_all(flush_.data(), flush_.size(), sink_.data(), stream_);
      check_cuda(cudaEventRecord(begin_.get(), stream_), "cudaEventRecord");
      work();
      check_cuda(cudaEventRecord(end_.get(), stream_), "cudaEventRecord");
      check_cuda(cudaEventSynchronize(end_.get()), "cudaEventSynchronize");
      float ms = 0.0F;
      check_cuda(cudaEventElapsedTime(&ms, begin_.get(), end_.get()), "cudaEventElapsedTime");
      if (i >= 3) times.push_back(ms);
    }
    std::nth_element(times.begin(), times.begin() + kRepetitions / 2, times.end());
    return 1e3 * static_cast<double>(times[kRepetitions / 2]);
  }

  /// Of a kernel that only reads.
  [[nodiscard]] double read_gbps(const DeviceBuffer<uint8_t>& memory, int64_t bytes) {
    return static_cast<double>(bytes) / median_us([&] { read_all(memory.data(), bytes, sink_.data(), stream_); }) / 1e3;
  }

  /// Bytes read and bytes written of a device copy. Overwrites the second `bytes` of `memory` with the first.
  [[nodiscard]] double copy_gbps(const DeviceBuffer<uint8_t>& memory, int64_t bytes) {
    const double us = median_us([&] {
      check_cuda(cudaMemcpyAsync(memory.data() + bytes, memory.data(), static_cast<size_t>(bytes),
                                 cudaMemcpyDeviceToDevice, stream_),
                 "cudaMemcpyAsync");
    });
    return 2.0 * static_cast<double>(bytes) / us / 1e3;
  }

  [[nodiscard]] cudaStream_t stream() const { return stream_; }

 private:
  static constexpr int64_t kFlushBytes = int64_t{256} << 20;  // larger than L2, and leaves no dirty lines there
  cudaStream_t stream_;
  DeviceBuffer<uint8_t> flush_;
  DeviceBuffer<uint32_t> sink_;
  CudaEvent begin_ = make_event();
  CudaEvent end_ = make_event();
};

}  // namespace quaver::bench
