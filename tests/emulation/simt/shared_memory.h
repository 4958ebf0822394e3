// Shared memory of a CTA: the thread-local variables of its OS thread. The dynamic part is one array, which kernels
// know by names of their own (shared_memory.cpp); static variables lie elsewhere among the thread-local ones.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quaver::simt {

inline constexpr uint32_t kDynamicAddress = 1024;     ///< address of dynamic shared memory, as on the device
inline constexpr uint32_t kStaticAddress = 0x100000;  ///< … of static variables: beyond what a descriptor can name
inline constexpr uint32_t kRankShift = 24;            ///< CTA r of the cluster has r << 24 in all its addresses
inline constexpr int kMaxDynamicBytes = 227 * 1024;

struct SharedMemory {
  uint8_t* dynamic = nullptr;
  int dynamic_bytes = 0;
  uint8_t* all = nullptr;  ///< all thread-local variables, the dynamic array among them
  size_t all_bytes = 0;

  /// Of the calling OS thread; every byte becomes 0xFF. Under AddressSanitizer what lies behind the first
  /// `dynamic_bytes` may not be touched until release().
  [[nodiscard]] static SharedMemory poisoned(int dynamic_bytes);
  void release() const;

  /// 0 for a pointer to something else.
  [[nodiscard]] uint32_t address(const void* pointer) const;
  /// Null unless all `bytes` are shared memory.
  [[nodiscard]] uint8_t* pointer(uint32_t address, int bytes) const;
};

}  // namespace quaver::simt
