#include "kv_cache/prefix_index.h"

#include <algorithm>

#include "core/check.h"

namespace quaver {
namespace {

/// One step of a multiply-xorshift hash (constants of splitmix64).
uint64_t mix(uint64_t state, uint64_t value) {
  state = (state ^ value) * 0x9E3779B97F4A7C15U;
  return state ^ (state >> 29);
}

}  // namespace

uint64_t hash_token_block(uint64_t previous, std::span<const int32_t> key, std::string_view salt) {
  uint64_t hash = mix(previous, salt.size());
  for (const char byte : salt) hash = mix(hash, static_cast<uint8_t>(byte));
  for (const int32_t value : key) hash = mix(hash, static_cast<uint32_t>(value));
  return hash;
}

PrefixIndex::PrefixIndex(int tokens_per_block, int64_t num_pages, HashFunction hash)
    : tokens_per_block_(tokens_per_block), hash_(hash), block_of_page_(static_cast<size_t>(num_pages)) {
  check(tokens_per_block > 0, "tokens of a prefix block ", tokens_per_block, ": expected at least 1");
}

const PrefixIndex::Block* PrefixIndex::find(Link previous, std::span<const int32_t> key, std::string_view salt) const {
  const std::string_view own_salt = previous.id == 0 ? salt : std::string_view{};
  const auto [first, last] = ids_by_hash_.equal_range(hash_(previous.hash, key, own_salt));
  for (auto entry = first; entry != last; ++entry) {
    const Block& block = blocks_.at(entry->second);
    if (block.previous == previous.id && block.salt == own_salt && std::ranges::equal(block.key, key)) {
      return &block;
    }
  }
  return nullptr;
}

PrefixIndex::Link PrefixIndex::add(Link previous, std::span<const int32_t> key, std::string_view salt,
                                   std::span<const int32_t> pages) {
  check(static_cast<int>(key.size()) >= tokens_per_block_, "key of a prefix block ", key.size(), ": expected at least ",
        tokens_per_block_);
  check_as(ErrorKind::kInternal, contains(previous), "prefix block ", previous.id, ": expected it in the index");
  // A page that already stands for another block stays there.
  const auto unclaimed = [&](int32_t page) { return page >= 0 && block_of_page_.at(static_cast<size_t>(page)) == 0; };
  Block* block = nullptr;
  if (const Block* found = find(previous, key, salt)) {
    block = &blocks_.at(found->link.id);
  } else {
    if (std::ranges::none_of(pages, unclaimed)) return {};
    const std::string_view own_salt = previous.id == 0 ? salt : std::string_view{};
    const Link link{.id = next_id_++, .hash = hash_(previous.hash, key, own_salt)};
    block = &blocks_[link.id];
    *block = {.link = link,
              .previous = previous.id,
              .key = {key.begin(), key.end()},
              .salt = std::string(own_salt),
              .pages = std::vector<int32_t>(pages.size(), -1)};
    ids_by_hash_.emplace(link.hash, link.id);
    if (previous.id != 0) ++blocks_.at(previous.id).num_next;
  }
  for (size_t i = 0; i < pages.size(); ++i) {
    if (block->pages[i] >= 0 || !unclaimed(pages[i])) continue;
    block->pages[i] = pages[i];
    block_of_page_[static_cast<size_t>(pages[i])] = block->link.id;
    ++num_pages_;
  }
  return block->link;
}

void PrefixIndex::forget_page(int32_t page) {
  uint64_t& id = block_of_page_.at(static_cast<size_t>(page));
  if (id == 0) return;
  std::ranges::replace(blocks_.at(id).pages, page, -1);
  --num_pages_;
  remove_if_unused(id);
  id = 0;
}

void PrefixIndex::clear() {
  blocks_.clear();
  ids_by_hash_.clear();
  std::ranges::fill(block_of_page_, uint64_t{0});
  num_pages_ = 0;
}

void PrefixIndex::remove_if_unused(uint64_t id) {
  while (id != 0) {
    const auto entry = blocks_.find(id);
    const Block& block = entry->second;
    if (block.num_next > 0 || std::ranges::any_of(block.pages, [](int32_t page) { return page >= 0; })) return;
    const auto [first, last] = ids_by_hash_.equal_range(block.link.hash);
    ids_by_hash_.erase(std::find_if(first, last, [&](const auto& pair) { return pair.second == id; }));
    id = block.previous;
    blocks_.erase(entry);
    if (id != 0) --blocks_.at(id).num_next;
  }
}

}  // namespace quaver
