// Times of work that a CUDA graph repeats: what a kernel costs inside a step.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>

#include "core/cuda.h"

namespace quaver::bench {

class GraphTimer {
 public:
  /// `idle_ms`: pause before each measurement; the power limit lowers the clock of long runs.
  GraphTimer(cudaStream_t stream, int idle_ms) : stream_(stream), idle_ms_(idle_ms) {}

  /// Median microseconds of one call of `launch(i, stream)` in a graph of `count`, over five launches after one to warm
  /// up.
  template <class Launch>
  [[nodiscard]] double median_us(int count, const Launch& launch) {
    const CudaGraphExec graph = capture_graph(stream_, [&](cudaStream_t stream) {
      for (int i = 0; i < count; ++i) launch(i, stream);
    });
    check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    std::this_thread::sleep_for(std::chrono::milliseconds(idle_ms_));
    std::array<float, kRepetitions> times{};
    check_cuda(cudaGraphLaunch(graph.get(), stream_), "cudaGraphLaunch");
    for (float& ms : times) {
      check_cuda(cudaEventRecord(begin_.get(), stream_), "cudaEventRecord");
      check_cuda(cudaGraphLaunch(graph.get(), stream_), "cudaGraphLaunch");
      check_cuda(cudaEventRecord(end_.get(), stream_), "cudaEventRecord");
      check_cuda(cudaEventSynchronize(end_.get()), "cudaEventSynchronize");
      check_cuda(cudaEventElapsedTime(&ms, begin_.get(), end_.get()), "cudaEventElapsedTime");
    }
    std::ranges::sort(times);
    return 1e3 * static_cast<double>(times[kRepetitions / 2]) / count;
  }

 private:
  static constexpr int kRepetitions = 5;
  cudaStream_t stream_;
  int idle_ms_;
  CudaEvent begin_ = make_event();
  CudaEvent end_ = make_event();
};

}  // namespace quaver::bench
