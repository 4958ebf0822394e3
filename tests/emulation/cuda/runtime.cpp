// The runtime API of cuda_runtime_api.h.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <vector>

#include "core/check.h"
#include "cuda_runtime_api.h"
#include "simt/device_memory.h"
#include "simt/early_start.h"
#include "simt/launch.h"
#include "simt/shared_memory.h"

struct QuaverGraph {
  std::vector<std::function<void()>> calls;
};
struct QuaverGraphExec {
  std::vector<std::function<void()>> calls;
};
struct QuaverStream {
  QuaverGraph* capturing = nullptr;
};
struct QuaverEvent {
  std::chrono::steady_clock::time_point time{};
};

namespace quaver::simt {
namespace {

std::map<uintptr_t, size_t> allocations;
std::set<uintptr_t> host_allocations;  // of them, cudaMallocHost()'s

/// Now, or when the graph that the stream records is launched.
template <class Call>
cudaError_t in_stream(cudaStream_t stream, Call call) {
  if (stream != nullptr && stream->capturing != nullptr) {
    stream->capturing->calls.push_back(call);
  } else {
    call();
  }
  return cudaSuccess;
}

}  // namespace

bool in_device_memory(const void* begin, int bytes) {
  const auto address = reinterpret_cast<uintptr_t>(begin);
  auto after = allocations.upper_bound(address);
  if (after == allocations.begin()) return false;
  --after;
  return address + static_cast<size_t>(bytes) <= after->first + after->second;
}

MemoryImage memory_image() {
  MemoryImage image;
  for (const auto& [address, bytes] : allocations) {
    if (host_allocations.contains(address)) continue;
    auto* const memory = reinterpret_cast<uint8_t*>(address);
    image[memory].assign(memory, memory + bytes);
  }
  return image;
}

cudaError_t launch(const cudaLaunchConfig_t& config, std::function<void()> thread) {
  LaunchShape shape{
      .grid = config.gridDim, .block = config.blockDim, .shared_bytes = static_cast<int>(config.dynamicSmemBytes)};
  bool programmatic = false;
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config.attrs[i];
    if (attribute.id == cudaLaunchAttributeClusterDimension)
      shape.cluster = static_cast<int>(attribute.val.clusterDim.x);
    if (attribute.id == cudaLaunchAttributeProgrammaticStreamSerialization) {
      programmatic = attribute.val.programmaticStreamSerializationAllowed != 0;
    }
  }
  return in_stream(config.stream, [shape, programmatic, thread = std::move(thread)] {
    run_launch(shape, thread, changes_since_ordinary_launch(programmatic));
  });
}

}  // namespace quaver::simt

using quaver::simt::in_stream;

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : error == cudaErrorMemoryAllocation ? "out of memory" : "invalid value";
}
cudaError_t cudaGetLastError() {
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int /*device*/) {
  *properties = {.name = "emulated sm_90a",
                 .major = 9,
                 .minor = 0,
                 .multiProcessorCount = quaver::simt::kMultiprocessors,
                 .l2CacheSize = 50 << 20,
                 .sharedMemPerMultiprocessor = 228 << 10,
                 .sharedMemPerBlockOptin = quaver::simt::kMaxDynamicBytes,
                 .totalGlobalMem = size_t{1} << 30};
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  return device == 0 ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaDeviceSynchronize() {
  quaver::simt::end_of_launches();
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  constexpr size_t kAlignment = 256;
  // Not rounded up: AddressSanitizer sees the first byte behind. Memory is not zero on a device.
  if (posix_memalign(memory, kAlignment, bytes) != 0) return cudaErrorMemoryAllocation;
  std::memset(*memory, 0xFF, bytes);
  quaver::simt::allocations[reinterpret_cast<uintptr_t>(*memory)] = bytes;
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  quaver::simt::allocations.erase(reinterpret_cast<uintptr_t>(memory));
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** memory, size_t bytes) {
  const cudaError_t error = cudaMalloc(memory, bytes);
  if (error == cudaSuccess) quaver::simt::host_allocations.insert(reinterpret_cast<uintptr_t>(*memory));
  return error;
}
cudaError_t cudaFreeHost(void* memory) {
  quaver::simt::host_allocations.erase(reinterpret_cast<uintptr_t>(memory));
  return cudaFree(memory);
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = *total = size_t{1} << 30;
  return cudaSuccess;
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  quaver::simt::end_of_launches();
  std::memset(to, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return in_stream(stream, [=] { cudaMemset(to, value, bytes); });
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind /*kind*/) {
  quaver::simt::end_of_launches();
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return in_stream(stream, [=] { cudaMemcpy(to, from, bytes, kind); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned /*flags*/) {
  *stream = new QuaverStream;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t /*stream*/) {
  quaver::simt::end_of_launches();
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t /*stream*/, cudaEvent_t /*event*/, unsigned /*flags*/) {
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new QuaverEvent;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  return cudaEventCreate(event);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return in_stream(stream, [event] { event->time = std::chrono::steady_clock::now(); });
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  *milliseconds = std::chrono::duration<float, std::milli>(end->time - begin->time).count();
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t /*event*/) {
  quaver::simt::end_of_launches();
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t /*event*/) {
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode /*mode*/) {
  stream->capturing = new QuaverGraph;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = std::exchange(stream->capturing, nullptr);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long /*flags*/) {
  *executable = new QuaverGraphExec{graph->calls};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t /*stream*/) {
  quaver::simt::end_of_launches();
  for (const auto& call : executable->calls) call();
  quaver::simt::end_of_launches();
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return cudaSuccess;
}
