// The slabs of a page pool in device memory: HostKvCache's twin. CUDA builds only.
#pragma once

#include <cstdint>
#include <utility>

#include "core/cuda.h"
#include "quaver/kv_cache.h"

namespace quaver {

class DeviceKvCache {
 public:
  DeviceKvCache() = default;
  /// On the current GPU, which is number `device`; pages are zero. Throws Error(kOutOfMemory).
  DeviceKvCache(CachePlan plan, int64_t num_pages, int device)
      : plan_(std::move(plan)), num_pages_(num_pages), device_(device), memory_(num_pages * plan_.block_bytes()) {}

  [[nodiscard]] const CachePlan& plan() const noexcept { return plan_; }
  [[nodiscard]] int64_t num_pages() const noexcept { return num_pages_; }
  /// u8[num_slabs, num_pages, page_bytes], as copy_pages() takes them.
  [[nodiscard]] TensorView slabs() const {
    return {memory_.data(),
            DType::kU8,
            {plan_.num_slabs, num_pages_, plan_.page_bytes},
            {.kind = Device::Kind::kCuda, .index = device_}};
  }
  /// u8[num_pages, page_bytes]: the pages of `layer`.
  [[nodiscard]] TensorView pages(int layer) const {
    const int64_t slab = plan_.places.at(static_cast<size_t>(layer)).slab;
    return {memory_.data() + slab * num_pages_ * plan_.page_bytes,
            DType::kU8,
            {num_pages_, plan_.page_bytes},
            {.kind = Device::Kind::kCuda, .index = device_}};
  }

 private:
  CachePlan plan_;
  int64_t num_pages_ = 0;
  int device_ = 0;
  DeviceBuffer<uint8_t> memory_;
};

}  // namespace quaver
