#include "kv_cache/manager.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/check.h"

namespace quaver {
namespace {

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/// The first position that a query at `position` sees: a window of W keys counts the query itself.
int64_t first_visible(int64_t position, int window) {
  return window > 0 ? std::max<int64_t>(0, position - window + 1) : 0;
}

}  // namespace

KvManager::KvManager(CachePlan plan, int64_t num_pages, bool prefix_caching, PrefixIndex::HashFunction hash)
    : plan_(std::move(plan)),
      pool_(num_pages),
      prefix_caching_(prefix_caching),
      index_(plan_.largest_page_tokens, num_pages, hash) {
  int pages = 0;
  for (const CacheGroup& group : plan_.groups) {
    first_page_.push_back(pages);
    pages += plan_.largest_page_tokens / group.layout.page_size;
  }
  first_page_.push_back(pages);
}

int64_t KvManager::match_prefix(SequencePages& sequence, std::span<const int32_t> prompt, std::string_view salt,
                                std::span<const TokenSpan> spans) {
  check(sequence.num_tokens == 0, "tokens of the sequence ", sequence.num_tokens, ": expected 0 before a prefix match");
  sequence.tables.assign(plan_.groups.size(), {});
  sequence.num_released.assign(plan_.groups.size(), 0);
  sequence.salt = salt;
  sequence.num_committed = 0;
  sequence.committed = {};
  if (!prefix_caching_ || prompt.empty()) return 0;

  const auto block_tokens = static_cast<size_t>(plan_.largest_page_tokens);
  const size_t most = (prompt.size() - 1) / block_tokens;
  std::vector<const PrefixIndex::Block*> chain;
  std::vector<int64_t> cached_run(plan_.groups.size(), 0);  // by group: cached tokens without a gap, up to here
  size_t matched = 0;
  PrefixIndex::Link link{};
  std::vector<int32_t> scratch;
  while (chain.size() < most) {
    const auto first = static_cast<int64_t>(chain.size() * block_tokens);
    const auto* block = index_.find(link, block_key(prompt, spans, first, plan_.largest_page_tokens, scratch), salt);
    if (block == nullptr) break;
    chain.push_back(block);
    link = block->link;
    const auto end = static_cast<int64_t>(chain.size() * block_tokens);
    bool usable = boundary_outside_spans(spans, end) == end;
    for (size_t g = 0; g < plan_.groups.size(); ++g) {
      for (int i = first_page_[g]; i < first_page_[g + 1]; ++i) {
        const bool cached = block->pages[static_cast<size_t>(i)] >= 0;
        cached_run[g] = cached ? cached_run[g] + plan_.groups[g].layout.page_size : 0;
      }
      usable = usable && end - cached_run[g] <= first_visible(end, plan_.groups[g].window);
    }
    if (usable) matched = chain.size();
  }
  if (matched == 0) return 0;

  sequence.num_tokens = static_cast<int64_t>(matched * block_tokens);
  sequence.num_committed = sequence.num_tokens;
  sequence.committed = chain[matched - 1]->link;
  for (size_t g = 0; g < plan_.groups.size(); ++g) {
    const CacheGroup& group = plan_.groups[g];
    const int64_t first_page = first_visible(sequence.num_tokens, group.window) / group.layout.page_size;
    std::vector<int32_t>& table = sequence.tables[g];
    for (size_t b = 0; b < matched; ++b) {
      for (int i = first_page_[g]; i < first_page_[g + 1]; ++i) {
        const bool visible = std::ssize(table) >= first_page;
        table.push_back(visible ? chain[b]->pages[static_cast<size_t>(i)] : -1);
        if (visible) pool_.retain(table.back());
      }
    }
    sequence.num_released[g] = first_page;
  }
  note_change(sequence);
  return sequence.num_tokens;
}

void KvManager::note_change(SequencePages& sequence) {
  if (sequence.serial == 0) sequence.serial = ++last_serial_;
  sequence.version = ++last_version_;
  sequence.unchanged_until = std::numeric_limits<int64_t>::max();
  for (size_t g = 0; g < plan_.groups.size(); ++g) {
    const int64_t page_size = plan_.groups[g].layout.page_size;
    const int64_t window = plan_.groups[g].window;
    sequence.unchanged_until = std::min(sequence.unchanged_until, std::ssize(sequence.tables[g]) * page_size);
    if (window > 0) {  // a query further right no longer sees the first page that is left
      const int64_t seen_until = (sequence.num_released[g] + 1) * page_size + window - 1;  // tokens
      // Where the token after that wants a page the release waits for it: one change of the tables instead of two.
      const bool waits = (seen_until + 1) % page_size == 0;
      sequence.unchanged_until = std::min(sequence.unchanged_until, seen_until + (waits ? 1 : 0));
    }
  }
}

KvManager::Change KvManager::change(const SequencePages& sequence, size_t group, int64_t num_new) const {
  const int64_t page_size = plan_.groups[group].layout.page_size;
  const bool has_table = group < sequence.tables.size();
  const int64_t num_pages = has_table ? std::ssize(sequence.tables[group]) : 0;
  Change change;
  change.first_visible_page = first_visible(sequence.num_tokens, plan_.groups[group].window) / page_size;
  change.new_pages = ceil_div(sequence.num_tokens + num_new, page_size) - num_pages;
  change.copy_last =
      num_new > 0 && sequence.num_tokens % page_size != 0 && pool_.reference_count(sequence.tables[group].back()) > 1;
  return change;
}

int64_t KvManager::plan_append(const SequencePages& sequence, int64_t num_new, std::vector<Change>& changes) const {
  check(num_new >= 0, "new tokens ", num_new, ": expected >= 0");
  changes.clear();
  int64_t needed = 0;
  for (size_t g = 0; g < plan_.groups.size(); ++g) {
    const Change& planned = changes.emplace_back(change(sequence, g, num_new));
    needed += planned.new_pages + (planned.copy_last ? 1 : 0);
  }
  int64_t available = pool_.num_free();
  // Only where it is needed: pages that are given up have long left the cache.
  for (size_t g = 0; g < sequence.tables.size() && needed > available; ++g) {
    for (int64_t i = sequence.num_released[g]; i < changes[g].first_visible_page; ++i) {
      if (pool_.reference_count(sequence.tables[g][static_cast<size_t>(i)]) == 1) ++available;
    }
  }
  return std::max<int64_t>(0, needed - available);
}

bool KvManager::can_append(const SequencePages& sequence, int64_t num_new) const {
  std::vector<Change> changes;
  return plan_append(sequence, num_new, changes) == 0;
}

int32_t KvManager::take_page() {
  const int32_t page = pool_.allocate();
  index_.forget_page(page);
  return page;
}

std::vector<PageCopy> KvManager::append(SequencePages& sequence, int64_t num_new) {
  std::vector<PageCopy> copies;
  if (!try_append(sequence, num_new, copies)) {
    const int64_t missing = plan_append(sequence, num_new, changes_);
    fail(ErrorKind::kOutOfMemory, "KV pages for ", num_new, " more tokens of a sequence of ", sequence.num_tokens,
         ": expected ", missing, " more than the ", pool_.num_free(), " free of ", pool_.num_pages());
  }
  return copies;
}

bool KvManager::try_append(SequencePages& sequence, int64_t num_new, std::vector<PageCopy>& copies) {
  if (num_new >= 0 && sequence.num_tokens + num_new <= sequence.unchanged_until) {
    sequence.num_tokens += num_new;
    return true;
  }
  if (plan_append(sequence, num_new, changes_) > 0) return false;
  sequence.tables.resize(plan_.groups.size());
  sequence.num_released.resize(plan_.groups.size());
  // Pages that left the window go first, in all groups: the pool may need them.
  for (size_t g = 0; g < plan_.groups.size(); ++g) {
    int64_t& released = sequence.num_released[g];
    for (; released < changes_[g].first_visible_page; ++released) {
      pool_.release(std::exchange(sequence.tables[g][static_cast<size_t>(released)], -1));
    }
  }
  for (size_t g = 0; g < plan_.groups.size(); ++g) {
    std::vector<int32_t>& table = sequence.tables[g];
    if (changes_[g].copy_last) {
      const int32_t shared = std::exchange(table.back(), take_page());
      pool_.release(shared);
      copies.push_back({.from = shared, .to = table.back()});
    }
    for (int64_t i = 0; i < changes_[g].new_pages; ++i) table.push_back(take_page());
  }
  sequence.num_tokens += num_new;
  note_change(sequence);
  return true;
}

std::vector<int32_t> KvManager::block_pages(const SequencePages& sequence, int64_t block) const {
  std::vector<int32_t> pages;
  for (size_t g = 0; g < plan_.groups.size(); ++g) {
    const int64_t count = first_page_[g + 1] - first_page_[g];
    const auto first = sequence.tables[g].begin() + block * count;
    pages.insert(pages.end(), first, first + count);
  }
  return pages;
}

void KvManager::commit(SequencePages& sequence, std::span<const int32_t> tokens, std::span<const TokenSpan> spans) {
  const auto num_tokens = static_cast<int64_t>(tokens.size());
  check(num_tokens <= sequence.num_tokens, "committed tokens ", num_tokens, ": expected at most the ",
        sequence.num_tokens, " of the sequence");
  if (!prefix_caching_) return;
  const int64_t block_tokens = plan_.largest_page_tokens;
  std::vector<int32_t> scratch;
  while (sequence.num_committed + block_tokens <= num_tokens) {
    // The last block may be gone when its pages were another sequence's: then the chain is offered anew.
    if (!index_.contains(sequence.committed)) {
      sequence.num_committed = 0;
      sequence.committed = {};
    }
    const auto key = block_key(tokens, spans, sequence.num_committed, block_tokens, scratch);
    const PrefixIndex::Link link = index_.add(sequence.committed, key, sequence.salt,
                                              block_pages(sequence, sequence.num_committed / block_tokens));
    if (link.id == 0) return;
    sequence.committed = link;
    sequence.num_committed += block_tokens;
  }
}

void KvManager::slots(const SequencePages& sequence, int group, int64_t first_token, int64_t count,
                      int64_t* out) const {
  check(group >= 0 && static_cast<size_t>(group) < plan_.groups.size(), "cache group ", group, ": expected 0 to ",
        static_cast<int64_t>(plan_.groups.size()) - 1);
  check(first_token >= 0 && count >= 0 && first_token <= sequence.num_tokens - count, "tokens ", first_token, " to ",
        first_token + count - 1, ": expected them among the ", sequence.num_tokens, " of the sequence");
  const int64_t page_size = plan_.groups[static_cast<size_t>(group)].layout.page_size;
  const std::vector<int32_t>& table = sequence.tables[static_cast<size_t>(group)];
  for (int64_t token = first_token; token < first_token + count;) {
    const int64_t page = table[static_cast<size_t>(token / page_size)];
    check(page >= 0, "token ", token, " of cache group ", group, ": expected one that has not left the window");
    const int64_t end = std::min(first_token + count, (token / page_size + 1) * page_size);
    for (int64_t slot = page * page_size + token % page_size; token < end; ++token) *out++ = slot++;
  }
}

SequencePages KvManager::fork(SequencePages& sequence) {
  SequencePages copy;
  copy.tables = sequence.tables;
  copy.num_released = sequence.num_released;
  copy.num_tokens = sequence.num_tokens;
  copy.salt = sequence.salt;
  copy.num_committed = sequence.num_committed;
  copy.committed = sequence.committed;
  for (const std::vector<int32_t>& table : copy.tables) {
    for (const int32_t page : table) {
      if (page >= 0) pool_.retain(page);
    }
  }
  if (copy.num_tokens > 0) note_change(copy);
  copy.unchanged_until = sequence.unchanged_until = -1;  // both must look before they write the last page
  return copy;
}

void KvManager::release(SequencePages& sequence) {
  // Last tokens first, all groups in step: the pool reuses the ends of cached prefixes before their beginnings.
  const int64_t blocks = ceil_div(sequence.num_tokens, plan_.largest_page_tokens);
  for (int64_t block = blocks - 1; block >= 0; --block) {
    for (size_t g = 0; g < sequence.tables.size(); ++g) {
      const std::vector<int32_t>& table = sequence.tables[g];
      const int64_t count = first_page_[g + 1] - first_page_[g];
      for (int64_t i = std::min((block + 1) * count, std::ssize(table)) - 1; i >= block * count; --i) {
        if (table[static_cast<size_t>(i)] >= 0) pool_.release(table[static_cast<size_t>(i)]);
      }
    }
  }
  sequence = {};
}

void KvManager::forget_prefixes() {
  index_.clear();
}

int64_t KvManager::num_held_pages(const SequencePages& sequence) {
  int64_t pages = 0;
  for (size_t g = 0; g < sequence.tables.size(); ++g) {
    pages += std::ssize(sequence.tables[g]) - sequence.num_released[g];
  }
  return pages;
}

}  // namespace quaver
