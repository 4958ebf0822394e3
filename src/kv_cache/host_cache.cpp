#include <sys/mman.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "core/check.h"
#include "quaver/kv_cache.h"

namespace quaver {
namespace {

size_t bytes_of(const CachePlan& plan, int64_t num_pages) {
  check(plan.block_bytes() > 0, "bytes of a block ", plan.block_bytes(), ": expected a plan from plan_cache()");
  check(num_pages > 0 && num_pages <= std::numeric_limits<int64_t>::max() / plan.block_bytes(), "pages ", num_pages,
        ": expected at least 1 and less than 2^63 bytes in all");
  return static_cast<size_t>(num_pages * plan.block_bytes());
}

/// An anonymous mapping: zero, page-aligned, and taking memory only where it is touched.
std::byte* map_zeroed(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  check_as(ErrorKind::kOutOfMemory, memory != MAP_FAILED, "KV cache of ", bytes,
           " bytes: expected no more than this machine can give");
  return static_cast<std::byte*>(memory);
}

}  // namespace

void HostKvCache::Unmap::operator()(std::byte* memory) const noexcept {
  munmap(memory, bytes);
}

HostKvCache::HostKvCache(CachePlan plan, int64_t num_pages)
    : plan_(std::move(plan)),
      num_pages_(num_pages),
      memory_(map_zeroed(bytes_of(plan_, num_pages)), Unmap{bytes_of(plan_, num_pages)}) {}

TensorView HostKvCache::slab(int index) {
  return {memory_.get() + index * num_pages_ * plan_.page_bytes, DType::kU8, {num_pages_, plan_.page_bytes}};
}

TensorView HostKvCache::pages(int layer) {
  check(layer >= 0 && static_cast<size_t>(layer) < plan_.places.size(), "layer ", layer, ": expected 0 to ",
        static_cast<int64_t>(plan_.places.size()) - 1);
  return slab(plan_.places[static_cast<size_t>(layer)].slab);
}

void HostKvCache::copy_page(int32_t from, int32_t to) {
  for (int index = 0; index < plan_.num_slabs; ++index) quaver::copy_page(slab(index), from, to);
}

void copy_page(TensorView pages, int32_t from, int32_t to) {
  check(pages.given() && pages.dtype == DType::kU8 && pages.rank == 2 && pages.stride(1) == 1, "pages ",
        to_string(pages), ": expected u8[num_pages, page_bytes], bytes of a page dense");
  for (const int32_t page : {from, to}) {
    check(page >= 0 && page < pages.dim(0), "page ", page, ": expected 0 to ", pages.dim(0) - 1);
  }
  if (from == to) return;
  auto* bytes = static_cast<std::byte*>(pages.data);
  std::copy_n(bytes + from * pages.stride(0), pages.dim(1), bytes + to * pages.stride(0));
}

}  // namespace quaver
