// Finds pages by what they hold. The unit is a block: as many tokens as the largest page, with the pages of all cache
// groups that hold them. Blocks form chains from the start of a sequence; a block is found by a hash chained over its
// predecessors, and counts as found only if its key, its predecessor and the salt are equal, so a collision of
// hashes can never share pages.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kv_cache/hashed_ids.h"

namespace quaver {

/// Hash of a block by its key, given the hash of its predecessor (0 for the first). The salt is given for the first
/// block only.
[[nodiscard]] uint64_t hash_token_block(uint64_t previous, std::span<const int32_t> key, std::string_view salt);

class PrefixIndex {
 public:
  using HashFunction = uint64_t (*)(uint64_t previous, std::span<const int32_t> key, std::string_view salt);

  /// A place in a chain; ids are never used twice. Default: the start of every chain.
  struct Link {
    uint64_t id = 0;
    uint64_t hash = 0;
  };

  struct Block {
    Link link;
    uint64_t previous = 0;       ///< id of the predecessor; 0: first of its chain
    int64_t num_next = 0;        ///< blocks that follow this one
    std::vector<int32_t> key;    ///< its tokens; with image spans more, see block_key()
    std::string salt;            ///< of the first block of a chain; empty in the others
    std::vector<int32_t> pages;  ///< in the order of the cache groups; -1: not cached (any more)
  };

  PrefixIndex(int tokens_per_block, int64_t num_pages, HashFunction hash);

  /// The block with this key after `previous`, or nullptr.
  [[nodiscard]] const Block* find(Link previous, std::span<const int32_t> key, std::string_view salt) const;

  /// Adds the block if it is new; keeps `pages` where it has none yet. Without any page to keep, a new block is not
  /// added and the default Link comes back.
  Link add(Link previous, std::span<const int32_t> key, std::string_view salt, std::span<const int32_t> pages);

  /// False once the block has left the index.
  [[nodiscard]] bool contains(Link link) const { return link.id == 0 || blocks_.contains(link.id); }

  /// The page is about to hold something else. A block without pages and successors leaves the index.
  void forget_page(int32_t page);
  /// Forgets everything. Links to what was here are as those of blocks that left.
  void clear();

  [[nodiscard]] int64_t num_blocks() const noexcept { return static_cast<int64_t>(blocks_.size()); }
  [[nodiscard]] int64_t num_pages() const noexcept { return num_pages_; }

 private:
  /// `hash` is that of the block; `own_salt` is empty but for the first of a chain.
  [[nodiscard]] const Block* find(uint64_t hash, Link previous, std::span<const int32_t> key,
                                  std::string_view own_salt) const;
  void remove_if_unused(uint64_t id);

  int tokens_per_block_ = 0;
  HashFunction hash_ = nullptr;
  uint64_t next_id_ = 1;
  int64_t num_pages_ = 0;
  std::unordered_map<uint64_t, Block> blocks_;  // by id
  HashedIds ids_by_hash_;
  std::vector<uint64_t> block_of_page_;  // by page id; 0: none
};

}  // namespace quaver
