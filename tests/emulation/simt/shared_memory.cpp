#include "simt/shared_memory.h"

#include <link.h>

#include <cstring>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

extern "C" {
alignas(1024) thread_local uint8_t quaver_dynamic_shared[quaver::simt::kMaxDynamicBytes];
}

// `extern __shared__ T name[]` in a kernel is a variable of the namespace around it. One line a name.
#define QUAVER_DYNAMIC_SHARED(scope, type, name)                                   \
  namespace scope {                                                                \
  extern thread_local type name[] __attribute__((alias("quaver_dynamic_shared"))); \
  }
QUAVER_DYNAMIC_SHARED(quaver::decode_fp8, uint8_t, tiles_memory)
QUAVER_DYNAMIC_SHARED(quaver::prefill_fp8, uint8_t, memory)
QUAVER_DYNAMIC_SHARED(quaver::packed_fp8, uint8_t, memory)
QUAVER_DYNAMIC_SHARED(quaver::general, float, shared)
QUAVER_DYNAMIC_SHARED(quaver::device_ops, uint4, row_memory)
QUAVER_DYNAMIC_SHARED(quaver::sampling, uint8_t, memory)
QUAVER_DYNAMIC_SHARED(quaver::testing, uint8_t, memory)

namespace quaver::simt {
namespace {

/// The program's own thread-local variables in the calling thread.
int find_variables(dl_phdr_info* info, size_t /*bytes*/, void* result) {
  auto& memory = *static_cast<SharedMemory*>(result);
  auto* const begin = static_cast<uint8_t*>(info->dlpi_tls_data);
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    if (header.p_type != PT_TLS || memory.dynamic < begin || memory.dynamic >= begin + header.p_memsz) continue;
    memory.all = begin;
    memory.all_bytes = header.p_memsz;
    return 1;
  }
  return 0;
}

}  // namespace

SharedMemory SharedMemory::poisoned(int dynamic_bytes) {
  SharedMemory memory{.dynamic = quaver_dynamic_shared, .dynamic_bytes = dynamic_bytes};
  dl_iterate_phdr(find_variables, &memory);
  const auto poison = [](uint8_t* begin, const uint8_t* end) {
    std::memset(begin, 0xFF, static_cast<size_t>(end - begin));
  };
  poison(memory.all, memory.dynamic + dynamic_bytes);
  poison(memory.dynamic + kMaxDynamicBytes, memory.all + memory.all_bytes);
#if defined(__SANITIZE_ADDRESS__)
  __asan_poison_memory_region(memory.dynamic + dynamic_bytes, static_cast<size_t>(kMaxDynamicBytes - dynamic_bytes));
#endif
  return memory;
}

void SharedMemory::release() const {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(dynamic, kMaxDynamicBytes);
#endif
}

uint32_t SharedMemory::address(const void* pointer) const {
  const auto* at = static_cast<const uint8_t*>(pointer);
  if (at >= dynamic && at <= dynamic + dynamic_bytes) return kDynamicAddress + static_cast<uint32_t>(at - dynamic);
  if (at >= all && at < all + all_bytes) return kStaticAddress + static_cast<uint32_t>(at - all);
  return 0;
}

uint8_t* SharedMemory::pointer(uint32_t address, int bytes) const {
  const int64_t in_dynamic = int64_t{address} - kDynamicAddress;
  if (in_dynamic >= 0 && in_dynamic + bytes <= dynamic_bytes) return dynamic + in_dynamic;
  const int64_t in_static = int64_t{address} - kStaticAddress;
  if (in_static >= 0 && in_static + bytes <= static_cast<int64_t>(all_bytes)) return all + in_static;
  return nullptr;
}

}  // namespace quaver::simt
