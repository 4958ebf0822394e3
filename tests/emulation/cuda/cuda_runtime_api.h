// The part of CUDA's vector types and runtime API that the library and its tests call, for the emulated device: memory
// is host memory, every call is complete when it returns, kernels run in simt/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

#define __host__
#define __device__
#define __global__
#define __forceinline__ inline
#define __align__(bytes) __attribute__((aligned(bytes)))

#define QUAVER_VECTORS(name, type)                                          \
  struct name##1 {                                                          \
    type x;                                                                 \
  };                                                                        \
  struct alignas(2 * sizeof(type)) name##2 {                                \
    type x, y;                                                              \
  };                                                                        \
  struct name##3 {                                                          \
    type x, y, z;                                                           \
  };                                                                        \
  struct alignas(4 * sizeof(type) < 16 ? 4 * sizeof(type) : 16) name##4 {   \
    type x, y, z, w;                                                        \
  };                                                                        \
  inline constexpr name##1 make_##name##1(type x) {                         \
    return {x};                                                             \
  }                                                                         \
  inline constexpr name##2 make_##name##2(type x, type y) {                 \
    return {x, y};                                                          \
  }                                                                         \
  inline constexpr name##3 make_##name##3(type x, type y, type z) {         \
    return {x, y, z};                                                       \
  }                                                                         \
  inline constexpr name##4 make_##name##4(type x, type y, type z, type w) { \
    return {x, y, z, w};                                                    \
  }
QUAVER_VECTORS(char, signed char)
QUAVER_VECTORS(uchar, unsigned char)
QUAVER_VECTORS(short, short)
QUAVER_VECTORS(ushort, unsigned short)
QUAVER_VECTORS(int, int)
QUAVER_VECTORS(uint, unsigned)
QUAVER_VECTORS(longlong, long long)
QUAVER_VECTORS(ulonglong, unsigned long long)
QUAVER_VECTORS(float, float)
QUAVER_VECTORS(double, double)
#undef QUAVER_VECTORS

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3() = default;
  constexpr dim3(unsigned x_, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorMemoryAllocation = 2 };
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal };
enum cudaLaunchAttributeID {
  cudaLaunchAttributeClusterDimension,
  cudaLaunchAttributeProgrammaticStreamSerialization,
};
inline constexpr unsigned cudaStreamNonBlocking = 1;
inline constexpr unsigned cudaEventDisableTiming = 2;

using cudaStream_t = struct QuaverStream*;
using cudaEvent_t = struct QuaverEvent*;
using cudaGraph_t = struct QuaverGraph*;
using cudaGraphExec_t = struct QuaverGraphExec*;

struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    struct {
      unsigned x, y, z;
    } clusterDim;
    int programmaticStreamSerializationAllowed;
  } val;
};

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

struct cudaDeviceProp {
  char name[256];
  int major, minor, multiProcessorCount, l2CacheSize;
  size_t sharedMemPerMultiprocessor, sharedMemPerBlockOptin, totalGlobalMem;
};

const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceSynchronize();

cudaError_t cudaMalloc(void** memory, size_t bytes);
cudaError_t cudaFree(void* memory);
cudaError_t cudaMallocHost(void** memory, size_t bytes);
cudaError_t cudaFreeHost(void* memory);
cudaError_t cudaMemGetInfo(size_t* free, size_t* total);
cudaError_t cudaMemset(void* to, int value, size_t bytes);
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream = nullptr);
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream = nullptr);

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
cudaError_t cudaEventCreate(cudaEvent_t* event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end);

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable);

namespace quaver::simt {
/// One launch: runs, or is recorded if the stream is being captured. Throws Error with what a thread did wrong.
cudaError_t launch(const cudaLaunchConfig_t& config, std::function<void()> thread);
}  // namespace quaver::simt

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  return [&](Parameters... values) {
    return quaver::simt::launch(*config, [=] { kernel(values...); });
  }(std::forward<Arguments>(arguments)...);
}

template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel /*kernel*/, cudaFuncAttribute /*attribute*/, int value) {
  return value <= 227 * 1024 ? cudaSuccess : cudaErrorInvalidValue;
}

template <class Kernel>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* ctas, Kernel /*kernel*/, int /*threads*/, size_t bytes) {
  *ctas = bytes > 227 * 1024 ? 0 : bytes > 113 * 1024 ? 1 : 2;
  return cudaSuccess;
}

template <class Kernel>
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, Kernel /*kernel*/, const cudaLaunchConfig_t* config) {
  *clusters = 4 / static_cast<int>(config->attrs[0].val.clusterDim.x);
  return cudaSuccess;
}
