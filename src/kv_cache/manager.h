// Which pages hold which tokens: block tables of many sequences over all cache groups, with sliding-window release,
// copy-on-write and prefix reuse. Pure bookkeeping: no page bytes are touched here. Not thread-safe.
//
// One step of a sequence:   append(seq, n)  → perform the returned copies → write K and V at slots() → attention
//                           → commit(seq, all tokens so far).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv_cache/prefix_index.h"
#include "kv_cache/token_spans.h"
#include "quaver/kv_cache.h"

namespace quaver {

/// The pages of one sequence. Owned through a KvManager: hand it back with release(). Move-only, since every table
/// entry is a counted reference; KvManager::fork() copies.
struct SequencePages {
  // What every decode step looks at comes first: a thousand sequences then fit a core's cache.
  int64_t num_tokens = 0;        ///< tokens that have a slot
  int64_t unchanged_until = -1;  ///< append() up to so many tokens leaves the tables alone
  uint64_t version = 0;          ///< a value never used before whenever a table changes
  uint64_t serial = 0;           ///< no two sequences ever share one; 0: no tokens yet
  int64_t num_committed = 0;     ///< leading tokens in the prefix index

  std::vector<std::vector<int32_t>> tables;  ///< [group][token / page size]; -1: released, left of the window
  std::vector<int64_t> num_released;         ///< [group]: leading entries of the table that are -1
  std::string salt;                          ///< sequences share prefixes only under equal salts
  PrefixIndex::Link committed;               ///< the block that ends at num_committed

  SequencePages() = default;
  SequencePages(SequencePages&&) = default;
  SequencePages& operator=(SequencePages&&) = default;
  SequencePages(const SequencePages&) = delete;
  SequencePages& operator=(const SequencePages&) = delete;
  ~SequencePages() = default;
};

/// Page `from` is to be copied to page `to` in every slab, in the order given, before the step writes K and V.
struct PageCopy {
  int32_t from = 0;
  int32_t to = 0;
  friend bool operator==(const PageCopy&, const PageCopy&) = default;
};

class KvManager {
 public:
  KvManager(CachePlan plan, int64_t num_pages, bool prefix_caching, PrefixIndex::HashFunction hash = hash_token_block);

  /// Gives an empty sequence the pages of the longest cached prefix of `prompt` and returns its tokens: a multiple of
  /// the largest page, less than prompt.size(), so that one token is left to compute. A sliding group must still have
  /// the last window-1 tokens of it. It never ends inside a span of `spans`, and what it shares was computed with the
  /// same spans of the same tokens. Throws Error(kInvalidArgument) for a sequence that has tokens.
  int64_t match_prefix(SequencePages& sequence, std::span<const int32_t> prompt, std::string_view salt = {},
                       std::span<const TokenSpan> spans = {});

  /// True if append() would find its pages.
  [[nodiscard]] bool can_append(const SequencePages& sequence, int64_t num_new) const;

  /// Makes room for `num_new` more tokens in every group: releases the pages of sliding groups that no query from
  /// position num_tokens on can see, copies a shared last page that is about to be written, and gets new pages. A page
  /// that leaves the window with the token that fills another is released with the next token.
  /// Throws Error(kOutOfMemory), with the sequence and the pool unchanged, when pages are short.
  [[nodiscard]] std::vector<PageCopy> append(SequencePages& sequence, int64_t num_new);
  /// The same with the copies put behind those in `copies`; false, and nothing changed, when pages are short.
  [[nodiscard]] bool try_append(SequencePages& sequence, int64_t num_new, std::vector<PageCopy>& copies);

  /// Offers the full pages of `tokens` (the sequence from its start, K and V written, not ending inside a span of its
  /// `spans`) to other sequences. Throws Error(kInvalidArgument) for more tokens than the sequence has.
  void commit(SequencePages& sequence, std::span<const int32_t> tokens, std::span<const TokenSpan> spans = {});

  /// Slots (page id * page size + offset) of `count` tokens from `first_token` on, in one group. Throws
  /// Error(kInvalidArgument) for tokens that the sequence does not have or that left the window.
  void slots(const SequencePages& sequence, int group, int64_t first_token, int64_t count, int64_t* out) const;

  /// A second owner of the same tokens. The next append() to either copies the page that both would write.
  [[nodiscard]] SequencePages fork(SequencePages& sequence);

  /// Gives all pages back and empties the sequence. What the prefix index knows of them stays reusable until the pages
  /// are needed. An empty sequence may be released again.
  void release(SequencePages& sequence);

  /// Empties the prefix index, for when pages may not hold what their sequences say. Sequences keep their pages.
  void forget_prefixes();

  /// Pages that the sequence holds now, those it shares included.
  [[nodiscard]] static int64_t num_held_pages(const SequencePages& sequence);

  [[nodiscard]] const CachePlan& plan() const noexcept { return plan_; }
  [[nodiscard]] int64_t num_pages() const noexcept { return pool_.num_pages(); }
  /// Free pages, those with a cached prefix included.
  [[nodiscard]] int64_t num_free_pages() const noexcept { return pool_.num_free(); }
  /// Pages, free or not, that the prefix index can hand to another sequence.
  [[nodiscard]] int64_t num_cached_pages() const noexcept { return index_.num_pages(); }

 private:
  /// What append() would do to one group.
  struct Change {
    int64_t first_visible_page = 0;  // pages left of it are released
    int64_t new_pages = 0;
    bool copy_last = false;
  };
  [[nodiscard]] Change change(const SequencePages& sequence, size_t group, int64_t num_new) const;
  /// To be called after every change of the tables.
  void note_change(SequencePages& sequence);
  /// What append() would do, by group; the result is how many pages are short for it.
  [[nodiscard]] int64_t plan_append(const SequencePages& sequence, int64_t num_new, std::vector<Change>& changes) const;
  [[nodiscard]] int32_t take_page();
  [[nodiscard]] std::vector<int32_t> block_pages(const SequencePages& sequence, int64_t block) const;

  CachePlan plan_;
  PagePool pool_;
  bool prefix_caching_ = false;
  std::vector<int> first_page_;  // by group: where its pages start among the pages of a prefix block
  PrefixIndex index_;
  uint64_t last_serial_ = 0;
  uint64_t last_version_ = 0;
  std::vector<Change> changes_;  // of one append()
};

}  // namespace quaver
