// The paged KV cache: page layout, cache groups, page pool, storage, and the tables of one sequence.
// Plain C++20, no CUDA header. The byte order inside a page is defined once, in src/kv_cache/page_format.h, and
// described in docs/kv_cache_format.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quaver/tensor.h"

namespace quaver {

/// How keys and values are stored.
enum class KvDtype : uint8_t {
  kE4M3,  ///< FP8 E4M3 bytes in MMA-ready order, one float32 scale per kv head for K and for V
  kBF16,  ///< BF16 in natural order
};

/// "fp8" or "bf16", the words of --kv-cache-dtype.
[[nodiscard]] constexpr std::string_view kv_dtype_name(KvDtype dtype) noexcept {
  return dtype == KvDtype::kE4M3 ? "fp8" : "bf16";
}

/// Shape of the pages of one layer kind. A page holds K and V of `page_size` tokens for all kv heads of one layer.
struct KvLayout {
  KvDtype dtype = KvDtype::kE4M3;
  int num_kv_heads = 1;
  int head_dim_k = 0;  ///< multiple of 16 (E4M3)
  int head_dim_v = 0;  ///< multiple of 16 (E4M3)
  int page_size = 64;  ///< tokens; 16, 32, 64 or 128
  friend bool operator==(const KvLayout&, const KvLayout&) = default;
};

/// Throws Error(kInvalidArgument) naming the field that no page can have.
void check_layout(const KvLayout& layout);

// ---- cache groups: which layers share a block table ----

/// What one layer needs from the cache. `layout.page_size` is filled in by plan_cache().
struct LayerCacheSpec {
  KvLayout layout{};
  int window = 0;  ///< sliding window in tokens; 0: full attention, every token is kept
};

/// Layers of one kind that share a block table and a slot list. layers[s] lives in slab s.
struct CacheGroup {
  KvLayout layout{};
  int window = 0;
  std::vector<int> layers;  ///< at most CachePlan::num_slabs; fewer in a last group that is not full
};

/// Where every layer's pages live. A block of the pool is one page id in all slabs; page `id` of the layer in slab s of
/// any group is the page_bytes bytes at slab(s) + id * page_bytes.
struct CachePlan {
  std::vector<CacheGroup> groups;
  int num_slabs = 0;              ///< S: layers of the most frequent full-attention kind (of any kind if none is full)
  int64_t page_bytes = 0;         ///< bytes of a page in one slab, equal for all groups
  int64_t wasted_page_bytes = 0;  ///< per round of one block a group: bytes no layer uses (padding of groups and pages)
  int largest_page_tokens = 0;    ///< prefix hashes are over this many tokens

  struct Place {
    int group = 0;
    int slab = 0;
  };
  std::vector<Place> places;  ///< by layer

  [[nodiscard]] int64_t block_bytes() const noexcept { return page_bytes * num_slabs; }
  /// Bytes that the K and V of one token take in all layers together.
  [[nodiscard]] int64_t token_bytes() const;
  /// Most blocks that one sequence holds at once on its way to `num_tokens` tokens, when a step appends at most
  /// `step_tokens` of them: full groups keep everything, sliding groups window - 1 + step_tokens (worst alignment).
  [[nodiscard]] int64_t blocks_for(int64_t num_tokens, int64_t step_tokens = 1) const;
};

/// Groups the layers of a model. `block_size` is the page size in tokens of the layer kind with the most bytes a token;
/// other kinds get a page size with equal page bytes where 16…128 allows it, else pages are padded (and the waste is in
/// the plan). Throws Error(kInvalidArgument) for an empty model or a page size that is not 16, 32, 64 or 128.
[[nodiscard]] CachePlan plan_cache(std::span<const LayerCacheSpec> layers, int block_size);

/// A table of the groups with page sizes, bytes a token and waste, for people.
[[nodiscard]] std::string to_string(const CachePlan& plan);

// ---- page pool ----

/// Reference-counted page ids 0 … num_pages-1. Free pages wait in one queue: ascending ids at first, later the page
/// that was released longest ago comes first (LRU), so that what a free page holds stays useful as long as possible.
/// Not thread-safe.
class PagePool {
 public:
  explicit PagePool(int64_t num_pages);

  /// The first free page, with reference count 1. Throws Error(kOutOfMemory) when none is free.
  [[nodiscard]] int32_t allocate();
  /// One more owner. A free page leaves the queue (a prefix-cache hit). Throws Error(kInvalidArgument) for an id out of
  /// range.
  void retain(int32_t page);
  /// One owner less; at zero the page joins the end of the queue. Throws Error(kInvalidArgument) for an id out of range
  /// or a free page.
  void release(int32_t page);

  /// Owners of a page; 0: free.
  [[nodiscard]] int reference_count(int32_t page) const;
  [[nodiscard]] int64_t num_free() const noexcept { return num_free_; }
  [[nodiscard]] int64_t num_pages() const noexcept { return std::ssize(pages_) - 1; }

 private:
  /// One cache line brings all there is to know of a page.
  struct Page {
    int32_t references = 0;
    int32_t previous = 0;  // in the ring of the free pages
    int32_t next = 0;
  };
  [[nodiscard]] size_t index_of(int32_t page) const;
  void enqueue(int32_t page);
  void dequeue(int32_t page);
  std::vector<Page> pages_;  // the last element is the head of the ring
  int64_t num_free_ = 0;
};

// ---- storage on the CPU ----

/// The slabs of a pool in host memory. Pages are zero at creation and take no memory until they are written.
class HostKvCache {
 public:
  /// Throws Error(kOutOfMemory) naming the bytes when the memory is not to be had.
  HostKvCache(CachePlan plan, int64_t num_pages);

  [[nodiscard]] const CachePlan& plan() const noexcept { return plan_; }
  [[nodiscard]] int64_t num_pages() const noexcept { return num_pages_; }
  /// u8[num_pages, page_bytes]: the pages of `layer`, as AttentionArgs::pages and append_kv() take them.
  [[nodiscard]] TensorView pages(int layer);
  /// Copies page `from` to page `to` in every slab: what copy-on-write asks for.
  void copy_page(int32_t from, int32_t to);

 private:
  struct Unmap {
    size_t bytes;
    void operator()(std::byte* memory) const noexcept;
  };
  [[nodiscard]] TensorView slab(int index);
  CachePlan plan_;
  int64_t num_pages_ = 0;
  std::unique_ptr<std::byte[], Unmap> memory_;
};

/// Writes new K and V rows into pages: scaled, quantised (E4M3) or rounded (BF16), in page order.
struct AppendArgs {
  KvLayout layout{};
  ConstTensorView k;        ///< [T, Hkv, Dk] f32 or bf16, token and head strides free, last dim dense
  ConstTensorView v;        ///< [T, Hkv, Dv], likewise
  ConstTensorView slots;    ///< [T] i64: page id * page_size + offset, all different; -1: skip this token
  ConstTensorView k_scale;  ///< [Hkv] f32, optional (1.0): stored K = K / k_scale
  ConstTensorView v_scale;  ///< [Hkv] f32, optional (1.0)
  TensorView pages;         ///< [num_pages, >= page_bytes(layout)] u8, bytes of a page dense
};

/// CPU append. Throws Error(kInvalidArgument) before anything is written: a slot out of range or given twice, a scale
/// that is not positive and finite, a shape or dtype that does not fit.
void append_kv(const AppendArgs& args);

/// K and V of one sequence in natural order, dequantised: for debugging and oracles.
struct NaturalKv {
  std::vector<float> k;  ///< [length, Hkv, Dk]
  std::vector<float> v;  ///< [length, Hkv, Dv]
};

/// Tokens 0 … length-1 of the sequence whose pages `block_table` lists. Tokens on pages with id -1 (released left of a
/// window) read as zeros. Empty scales are 1.0. Throws Error(kInvalidArgument) for a page id out of range or a short
/// table.
[[nodiscard]] NaturalKv read_back(const KvLayout& layout, ConstTensorView pages, std::span<const int32_t> block_table,
                                  int64_t length, std::span<const float> k_scale, std::span<const float> v_scale);

/// Copies one page (all bytes) inside a slab: the copy of copy-on-write.
void copy_page(TensorView pages, int32_t from, int32_t to);

}  // namespace quaver
