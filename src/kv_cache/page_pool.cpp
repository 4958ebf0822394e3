#include <limits>

#include "core/check.h"
#include "quaver/kv_cache.h"

namespace quaver {

PagePool::PagePool(int64_t num_pages) {
  check(num_pages >= 0 && num_pages < std::numeric_limits<int32_t>::max(), "pages ", num_pages,
        ": expected 0 to 2^31-2");
  references_.resize(static_cast<size_t>(num_pages));
  links_.resize(static_cast<size_t>(num_pages) + 1);
  for (int64_t page = 0; page < num_pages; ++page) enqueue(static_cast<int32_t>(page));
}

int32_t PagePool::allocate() {
  check_as(ErrorKind::kOutOfMemory, num_free_ > 0, "free pages 0: expected at least 1 of ", num_pages());
  const int32_t page = links_.back().next;
  dequeue(page);
  references_[static_cast<size_t>(page)] = 1;
  return page;
}

void PagePool::retain(int32_t page) {
  if (references_[index_of(page)]++ == 0) dequeue(page);
}

void PagePool::release(int32_t page) {
  int32_t& references = references_[index_of(page)];
  check(references > 0, "page ", page, ": expected a page in use, not a free one");
  if (--references == 0) enqueue(page);
}

int PagePool::reference_count(int32_t page) const {
  return references_[index_of(page)];
}

size_t PagePool::index_of(int32_t page) const {
  check(page >= 0 && page < num_pages(), "page ", page, ": expected 0 to ", num_pages() - 1);
  return static_cast<size_t>(page);
}

void PagePool::enqueue(int32_t page) {
  Link& head = links_.back();
  const int32_t last = num_free_ == 0 ? static_cast<int32_t>(num_pages()) : head.previous;
  links_[static_cast<size_t>(page)] = {.previous = last, .next = static_cast<int32_t>(num_pages())};
  links_[static_cast<size_t>(last)].next = page;
  head.previous = page;
  ++num_free_;
}

void PagePool::dequeue(int32_t page) {
  const Link link = links_[static_cast<size_t>(page)];
  links_[static_cast<size_t>(link.previous)].next = link.next;
  links_[static_cast<size_t>(link.next)].previous = link.previous;
  --num_free_;
}

}  // namespace quaver
