#include "core/device_info.h"

#include "core/cuda.h"

namespace quaver {

DeviceInfo query_device(int index) {
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  return {.name = properties.name,
          .index = index,
          .arch = properties.major * 10 + properties.minor,
          .num_sms = properties.multiProcessorCount,
          .l2_bytes = properties.l2CacheSize,
          .shared_bytes_per_sm = static_cast<int64_t>(properties.sharedMemPerMultiprocessor),
          .shared_bytes_per_cta = static_cast<int64_t>(properties.sharedMemPerBlockOptin)};
}

}  // namespace quaver
