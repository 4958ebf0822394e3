#include <limits>

#include "core/check.h"
#include "quaver/kv_cache.h"

namespace quaver {

PagePool::PagePool(int64_t num_pages) {
  check(num_pages >= 0 && num_pages < std::numeric_limits<int32_t>::max(), "pages ", num_pages,
        ": expected 0 to 2^31-2");
  pages_.resize(static_cast<size_t>(num_pages) + 1);
  for (int64_t page = 0; page < num_pages; ++page) enqueue(static_cast<int32_t>(page));
}

int32_t PagePool::allocate() {
  check_as(ErrorKind::kOutOfMemory, num_free_ > 0, "free pages 0: expected at least 1 of ", num_pages());
  const int32_t page = pages_.back().next;
  dequeue(page);
  pages_[static_cast<size_t>(page)].references = 1;
  return page;
}

void PagePool::retain(int32_t page) {
  if (pages_[index_of(page)].references++ == 0) dequeue(page);
}

void PagePool::release(int32_t page) {
  int32_t& references = pages_[index_of(page)].references;
  check(references > 0, "page ", page, ": expected a page in use, not a free one");
  if (--references == 0) enqueue(page);
}

int PagePool::reference_count(int32_t page) const {
  return pages_[index_of(page)].references;
}

size_t PagePool::index_of(int32_t page) const {
  check(page >= 0 && page < num_pages(), "page ", page, ": expected 0 to ", num_pages() - 1);
  return static_cast<size_t>(page);
}

void PagePool::enqueue(int32_t page) {
  Page& head = pages_.back();
  const auto head_index = static_cast<int32_t>(num_pages());
  const int32_t last = num_free_ == 0 ? head_index : head.previous;
  pages_[static_cast<size_t>(page)] = {.references = 0, .previous = last, .next = head_index};
  pages_[static_cast<size_t>(last)].next = page;
  head.previous = page;
  ++num_free_;
}

void PagePool::dequeue(int32_t page) {
  const Page& entry = pages_[static_cast<size_t>(page)];
  pages_[static_cast<size_t>(entry.previous)].next = entry.next;
  pages_[static_cast<size_t>(entry.next)].previous = entry.previous;
  --num_free_;
}

}  // namespace quaver
