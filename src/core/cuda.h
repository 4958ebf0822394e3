// CUDA handles with owners, and the check of every CUDA call. Included only by files of the CUDA build.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "core/check.h"

namespace quaver {

/// Throws Error(kCuda, or kOutOfMemory) naming the call and CUDA's own words.
inline void check_cuda(cudaError_t status, const char* call) {
  if (status == cudaSuccess) [[likely]]
    return;
  fail(status == cudaErrorMemoryAllocation ? ErrorKind::kOutOfMemory : ErrorKind::kCuda, call, ": ",
       cudaGetErrorString(status));
}

/// Owner of one CUDA handle.
template <class Handle, cudaError_t (*kDestroy)(Handle)>
class CudaHandle {
 public:
  CudaHandle() = default;
  explicit CudaHandle(Handle handle) noexcept : handle_(handle) {}
  CudaHandle(CudaHandle&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  CudaHandle& operator=(CudaHandle&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  CudaHandle(const CudaHandle&) = delete;
  CudaHandle& operator=(const CudaHandle&) = delete;
  ~CudaHandle() {
    if (handle_ != nullptr) static_cast<void>(kDestroy(handle_));
  }
  [[nodiscard]] Handle get() const noexcept { return handle_; }

 private:
  Handle handle_ = nullptr;
};

using CudaStream = CudaHandle<cudaStream_t, cudaStreamDestroy>;
using CudaEvent = CudaHandle<cudaEvent_t, cudaEventDestroy>;
using CudaGraph = CudaHandle<cudaGraph_t, cudaGraphDestroy>;
using CudaGraphExec = CudaHandle<cudaGraphExec_t, cudaGraphExecDestroy>;

[[nodiscard]] inline CudaStream make_stream() {
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return CudaStream(stream);
}

[[nodiscard]] inline CudaEvent make_event() {
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreate(&event), "cudaEventCreate");
  return CudaEvent(event);
}

/// What `record(stream)` launches, as an executable graph.
template <class Record>
[[nodiscard]] CudaGraphExec capture_graph(cudaStream_t stream, Record&& record) {
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  cudaGraph_t graph = nullptr;
  try {
    std::forward<Record>(record)(stream);
  } catch (...) {  // the stream must not stay in capture
    if (cudaStreamEndCapture(stream, &graph) == cudaSuccess && graph != nullptr) cudaGraphDestroy(graph);
    throw;
  }
  check_cuda(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  const CudaGraph owner(graph);
  cudaGraphExec_t executable = nullptr;
  check_cuda(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  return CudaGraphExec(executable);
}

/// cudaMalloc. Throws Error(kOutOfMemory) with the bytes wanted and free.
[[nodiscard]] inline void* allocate_device_memory(size_t bytes) {
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, bytes);
  if (status == cudaErrorMemoryAllocation) {
    size_t free = 0;
    size_t total = 0;
    static_cast<void>(cudaGetLastError());  // it would be taken for that of a later launch
    check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    fail(ErrorKind::kOutOfMemory, "GPU memory of ", bytes, " bytes: expected at most the ", free, " free of ", total);
  }
  check_cuda(status, "cudaMalloc");
  return memory;
}

/// Device memory of `count` elements, zero at creation.
template <class T>
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(int64_t count) : count_(count) {
    check(count >= 0, "device buffer of ", count, " elements: expected >= 0");
    if (count == 0) return;
    void* const memory = allocate_device_memory(bytes());
    memory_ = CudaHandle<void*, cudaFree>(memory);
    check_cuda(cudaMemset(memory, 0, bytes()), "cudaMemset");
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");  // other streams do not wait for the default one
  }
  [[nodiscard]] T* data() const noexcept { return static_cast<T*>(memory_.get()); }
  [[nodiscard]] int64_t size() const noexcept { return count_; }
  [[nodiscard]] size_t bytes() const noexcept { return static_cast<size_t>(count_) * sizeof(T); }

 private:
  int64_t count_ = 0;
  CudaHandle<void*, cudaFree> memory_;
};

/// Page-locked host memory of `count` elements, which copies to and from a GPU without the host waiting. Not
/// initialised.
template <class T>
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  explicit PinnedBuffer(int64_t count) : count_(count) {
    check(count >= 0, "pinned buffer of ", count, " elements: expected >= 0");
    if (count == 0) return;
    void* memory = nullptr;
    check_cuda(cudaMallocHost(&memory, static_cast<size_t>(count) * sizeof(T)), "cudaMallocHost");
    memory_ = CudaHandle<void*, cudaFreeHost>(memory);
  }
  [[nodiscard]] T* data() const noexcept { return static_cast<T*>(memory_.get()); }
  [[nodiscard]] int64_t size() const noexcept { return count_; }

 private:
  int64_t count_ = 0;
  CudaHandle<void*, cudaFreeHost> memory_;
};

/// Launches `kernel(arguments…)`.
template <class... Parameters>
void launch(void (*kernel)(Parameters...), dim3 grid, int threads, int shared_bytes, cudaStream_t stream,
            const std::type_identity_t<Parameters>&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  check_cuda(cudaLaunchKernelEx(&config, kernel, arguments...), "cudaLaunchKernelEx");
}

/// Launches `kernel(parameters)` so that it may start before the kernel in front of it has ended (programmatic
/// dependent launch); the kernel must execute griddepcontrol.wait. `cluster`: CTAs a cluster.
template <class Parameters>
void launch_programmatic(void (*kernel)(Parameters), dim3 grid, int threads, int shared_bytes, cudaStream_t stream,
                         const std::type_identity_t<Parameters>& parameters, int cluster = 1) {
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = cluster > 1 ? 2 : 1;
  check_cuda(cudaLaunchKernelEx(&config, kernel, parameters), "cudaLaunchKernelEx");
}

}  // namespace quaver
