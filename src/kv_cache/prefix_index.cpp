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

uint64_t pair_of(int32_t first, int32_t second) {
  return uint64_t{static_cast<uint32_t>(first)} << 32 | static_cast<uint32_t>(second);
}

}  // namespace

uint64_t hash_token_block(uint64_t previous, std::span<const int32_t> key, std::string_view salt) {
  uint64_t hash = mix(previous, salt.size());
  for (const char byte : salt) hash = mix(hash, static_cast<uint8_t>(byte));
  // Two chains, two tokens at a time: one by one, 128 tokens would be the most expensive part of a prefix block.
  uint64_t other = ~hash;
  size_t i = 0;
  for (; i + 4 <= key.size(); i += 4) {
    hash = mix(hash, pair_of(key[i], key[i + 1]));
    other = mix(other, pair_of(key[i + 2], key[i + 3]));
  }
  for (; i < key.size(); ++i) hash = mix(hash, static_cast<uint32_t>(key[i]));
  return mix(hash, other);
}

PrefixIndex::PrefixIndex(int tokens_per_block, int64_t num_pages, HashFunction hash)
    : tokens_per_block_(tokens_per_block), hash_(hash), block_of_page_(static_cast<size_t>(num_pages)) {
  check(tokens_per_block > 0, "tokens of a prefix block ", tokens_per_block, ": expected at least 1");
}

const PrefixIndex::Block* PrefixIndex::find(Link previous, std::span<const int32_t> key, std::string_view salt) const {
  const std::string_view own_salt = previous.id == 0 ? salt : std::string_view{};
  return find(hash_(previous.hash, key, own_salt), previous, key, own_salt);
}

const PrefixIndex::Block* PrefixIndex::find(uint64_t hash, Link previous, std::span<const int32_t> key,
                                            std::string_view own_salt) const {
  const Block* found = nullptr;
  (void)ids_by_hash_.find(hash, [&](uint64_t id) {
    const Block& block = blocks_.at(id);
    if (block.previous != previous.id || block.salt != own_salt || !std::ranges::equal(block.key, key)) return false;
    found = &block;
    return true;
  });
  return found;
}

PrefixIndex::Link PrefixIndex::add(Link previous, std::span<const int32_t> key, std::string_view salt,
                                   std::span<const int32_t> pages) {
  check(static_cast<int>(key.size()) >= tokens_per_block_, "key of a prefix block ", key.size(), ": expected at least ",
        tokens_per_block_);
  check_as(ErrorKind::kInternal, contains(previous), "prefix block ", previous.id, ": expected it in the index");
  // A page that already stands for another block stays there.
  const auto unclaimed = [&](int32_t page) { return page >= 0 && block_of_page_.at(static_cast<size_t>(page)) == 0; };
  const std::string_view own_salt = previous.id == 0 ? salt : std::string_view{};
  const uint64_t hash = hash_(previous.hash, key, own_salt);
  Block* block = nullptr;
  if (const Block* found = find(hash, previous, key, own_salt)) {
    block = &blocks_.at(found->link.id);
  } else {
    if (std::ranges::none_of(pages, unclaimed)) return {};
    const Link link{.id = next_id_++, .hash = hash};
    block = &blocks_[link.id];
    *block = {.link = link,
              .previous = previous.id,
              .key = {key.begin(), key.end()},
              .salt = std::string(own_salt),
              .pages = std::vector<int32_t>(pages.size(), -1)};
    ids_by_hash_.add(link.hash, link.id);
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
    ids_by_hash_.remove(block.link.hash, id);
    id = block.previous;
    blocks_.erase(entry);
    if (id != 0) --blocks_.at(id).num_next;
  }
}

}  // namespace quaver
