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
  /// `idle_ms`: pause before each measurement; the power limit lowers the clock of long runs. `hold_ms` above 0: the
  /// graph is repeated for so long, and the mean of the second half counts: what work takes under the power limit.
  GraphTimer(cudaStream_t stream, int idle_ms, int hold_ms = 0)
      : stream_(stream), idle_ms_(idle_ms), hold_(std::chrono::milliseconds(hold_ms)) {}

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
    if (hold_.count() > 0) {
      static_cast<void>(repeated_us(graph.get()));
      return repeated_us(graph.get()) / count;
    }
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
  /// Mean microseconds of a launch, of as many as half of hold_ takes.
  double repeated_us(cudaGraphExec_t graph) {
    const auto begin = std::chrono::steady_clock::now();
    const auto passed = [&] { return std::chrono::steady_clock::now() - begin; };
    int launches = 0;
    for (; passed() < hold_ / 2; ++launches) {  // one always waits behind the one that runs
      check_cuda(cudaGraphLaunch(graph, stream_), "cudaGraphLaunch");
      if (launches > 0) check_cuda(cudaEventSynchronize(end_.get()), "cudaEventSynchronize");
      check_cuda(cudaEventRecord(end_.get(), stream_), "cudaEventRecord");
    }
    check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    return std::chrono::duration<double, std::micro>(passed()).count() / launches;
  }

  static constexpr int kRepetitions = 5;
  cudaStream_t stream_;
  int idle_ms_;
  std::chrono::steady_clock::duration hold_;
  CudaEvent begin_ = make_event();
  CudaEvent end_ = make_event();
};

}  // namespace quaver::bench
