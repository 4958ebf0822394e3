// What the code needs to know about a GPU, as plain values: tests fake it, no CUDA call is needed to decide anything.
#pragma once

#include <cstdint>
#include <string>

namespace quaver {

struct DeviceInfo {
  std::string name;
  int index = 0;
  int arch = 0;  ///< compute capability as major * 10 + minor: 90 for H100 and H200
  int num_sms = 0;
  int64_t l2_bytes = 0;
  int64_t shared_bytes_per_sm = 0;
  int64_t shared_bytes_per_cta = 0;  ///< most that one CTA can opt in to
};

/// Reads GPU `index`. Throws Error(kCuda). Only in builds with QUAVER_CUDA.
[[nodiscard]] DeviceInfo query_device(int index);

}  // namespace quaver
