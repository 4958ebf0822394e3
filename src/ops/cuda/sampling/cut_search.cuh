// Where top-k and top-p cut a row, by one CTA. The cut is exact: tokens are ordered by (logit, id) and weights are
// integers, so it does not matter which threads found what.
//
// The chunks' best tokens alone give a logit that the cut is not below, usually with few tokens above it in few chunks.
// Those are listed in shared memory and sorted. Where they are too many, the range of logits that the cut lies in is
// narrowed first: tokens and units are counted in 32 bins a pass, every thread into bins of its own.
#pragma once

#include "ops/cuda/sampling/chunk.cuh"

namespace quaver::sampling {

inline constexpr int kCutWarps = 12;  // 168 registers a thread
inline constexpr int kCutThreads = 32 * kCutWarps;
inline constexpr int kListed = 4096;  ///< tokens that are sorted at once
inline constexpr int kBins = 32;
inline constexpr int kPassesByValue = 3;  ///< bins of equal width in logits; after that in orders, which always ends

/// The first token, best first, with which `tokens` tokens or `units` units are reached.
struct Goal {
  uint64_t tokens = ~uint64_t{0};
  uint64_t units = ~uint64_t{0};
  [[nodiscard]] __device__ bool reached(uint64_t some_tokens, uint64_t some_units) const {
    return some_tokens >= tokens || some_units >= units;
  }
};

struct Cut {
  uint64_t order = 0;  ///< of the token; 0: all together do not reach the goal
  uint64_t units = 0;  ///< up to and including it
};

struct Counts {
  uint64_t tokens = 0;
  uint64_t units = 0;
};

struct CutShared {
  float best[kMostChunks];
  WarpResults<kCutWarps> results;
  Place place;
  Cut cut;
  uint64_t bin_units[kBins];
  uint32_t bin_tokens[kBins];
  uint32_t edges[kBins];  ///< the best order (of a logit) in a bin
  int32_t listed;
  union {
    uint64_t list[kListed];
    uint32_t ties[kMostChunks];
    struct {
      uint64_t units[kBins][kCutThreads];
      uint32_t tokens[kBins][kCutThreads];
    } bins;
  };
};

class CutSearch {
 public:
  __device__ CutSearch(const Parameters& p, int64_t row, const Slot& slot, CutShared& shared)
      : p_(p), row_(row), slot_(slot), scale_(slot.rule.scale), s_(shared) {
    uint64_t best = 0;
    for (int i = thread(); i < p.chunks; i += kCutThreads) {
      s_.best[i] = __ldcg(p.drawn_chunks.best + row * p.chunks + i);
      const uint64_t order = order_of(s_.best[i], 0);
      best = order > best ? order : best;
    }
    best = block_max(best, s_.results);
    best_ = logit_of(static_cast<uint32_t>(best >> 32U));
    exponent_ = weight_exponent(best_, scale_);
  }

  [[nodiscard]] __device__ float best() const { return best_; }

  /// Units of the whole row.
  [[nodiscard]] __device__ uint64_t total() {
    uint64_t units = 0;
    for (int i = thread(); i < p_.chunks; i += kCutThreads) {
      units += chunk_units(__ldcg(p_.drawn_chunks.sums + row_ * p_.chunks + i), weight_exponent(s_.best[i], scale_),
                           exponent_);
    }
    return block_scan(units, s_.results).total;
  }

  /// Among the tokens from order `limit` up.
  [[nodiscard]] __device__ Cut find(const Goal& goal, uint64_t limit) {
    Counts above;  // tokens better than `high`
    uint64_t high = static_cast<uint64_t>(order_of(best_)) << 32U | 0xFFFFFFFFU;
    uint64_t low = bound(goal, limit);
    int count = 0;  // of tokens in [low, high]
#pragma unroll 1
    for (int pass = 0;; ++pass) {
      if (count <= kListed) count = list(low, high);
      if (count <= kListed) break;
      if (low >> 32U == high >> 32U) return cut_ties(low, high, above, goal);
      count_bins(low, high, pass < kPassesByValue);
      int bin = 0;
      for (; bin < kBins; ++bin) {
        const Counts next{.tokens = above.tokens + s_.bin_tokens[bin], .units = above.units + s_.bin_units[bin]};
        if (goal.reached(next.tokens, next.units)) break;
        above = next;
      }
      if (bin == kBins) return {.order = 0, .units = above.units};
      if (bin + 1 < kBins) {
        const uint64_t least = (uint64_t{s_.edges[bin + 1]} + 1) << 32U;
        low = least > low ? least : low;
      }
      if (bin > 0) high = uint64_t{s_.edges[bin]} << 32U | 0xFFFFFFFFU;
      count = static_cast<int>(s_.bin_tokens[bin]);
    }
    sort(count);
    return cut_list(count, above, goal);
  }

  /// Sums of the chunks over the tokens from order `lowest` up.
  __device__ void sum_kept(uint64_t lowest) { visit(Visit::kSum, lowest, ~uint64_t{0}); }

 private:
  [[nodiscard]] static __device__ int thread() { return static_cast<int>(threadIdx.x); }
  [[nodiscard]] __device__ uint64_t units_of(uint64_t order) const {
    return weight_units(logit_of(static_cast<uint32_t>(order >> 32U)), scale_, exponent_);
  }

  enum class Visit : uint8_t {
    kList,   ///< the tokens, in any order
    kCount,  ///< tokens and units by bins
    kTies,   ///< tokens by chunks
    kTie,    ///< token s_.place of chunk s_.place: the cut
    kSum,    ///< sums of chunks
  };

  /// Reads all chunks with a token in [low, high], a warp each. One function for all that is done with them, because
  /// reading is the most code.
  __device__ __attribute__((noinline)) void visit(Visit purpose, uint64_t low, uint64_t high) {
#pragma unroll 1
    for (int i = warp_index(); i < p_.chunks; i += kCutWarps) {
      const bool skipped = order_of(s_.best[i]) < low >> 32U || (purpose == Visit::kTie && i != s_.place.item);
      if (skipped) {
        if (purpose == Visit::kSum && lane_index() == 0) p_.drawn_chunks.sums[row_ * p_.chunks + i] = 0;
        continue;
      }
      const Chunk chunk = load_drawn_logits(p_, row_, i, slot_);
      uint32_t inside = 0;  // bit k: logits[k]
#pragma unroll
      for (int k = 0; k < kPerLane; ++k) {
        const uint64_t order = order_of(chunk.logits[k], chunk.token(k));
        inside |= (order >= low && order <= high ? 1U : 0U) << k;
      }
      const auto is_inside = [&](int k) { return inside >> k & 1U; };
      if (purpose == Visit::kCount) {
#pragma unroll
        for (int k = 0; k < kPerLane; ++k) {
          if (is_inside(k) != 0) count_token(chunk.logits[k]);
        }
      } else if (purpose == Visit::kSum) {
        const int32_t reference = weight_exponent(s_.best[i], scale_);
        uint64_t sum = 0;
#pragma unroll
        for (int k = 0; k < kPerLane; ++k) {
          sum += is_inside(k) != 0 ? weight_units(chunk.logits[k], scale_, reference) : 0;
        }
        sum = warp_sum(sum);
        if (lane_index() == 0) p_.drawn_chunks.sums[row_ * p_.chunks + i] = sum;
      } else if (purpose == Visit::kTie) {
        const int32_t token = locate_token(chunk, s_.place.left, [&](int k) { return uint64_t{is_inside(k)}; });
        if (lane_index() == 0) s_.cut.order = order_of(logit_of(static_cast<uint32_t>(high >> 32U)), token);
      } else {
        const auto own = static_cast<uint64_t>(__popc(inside));
        const uint64_t end = warp_scan(own);
        if (purpose == Visit::kTies) {
          if (lane_index() == 31) s_.ties[i] = static_cast<uint32_t>(end);
          continue;
        }
        int at = lane_index() == 31 ? atomicAdd(&s_.listed, static_cast<int>(end)) : 0;
        at = __shfl_sync(~0U, at, 31) + static_cast<int>(end - own);
#pragma unroll
        for (int k = 0; k < kPerLane; ++k) {
          if (is_inside(k) == 0) continue;
          if (at < kListed) s_.list[at] = order_of(chunk.logits[k], chunk.token(k));
          ++at;
        }
      }
    }
  }

  /// Into the thread's own bins.
  __device__ __forceinline__ void count_token(float logit) {
    const uint32_t order = order_of(logit);
    int bin = 0;  // the last one whose edge is not below the order
#pragma unroll
    for (int step = kBins / 2; step > 0; step /= 2) {
      if (order <= s_.edges[bin + step]) bin += step;
    }
    s_.bins.units[bin][thread()] += weight_units(logit, scale_, exponent_);
    ++s_.bins.tokens[bin][thread()];
  }

  /// An order that the cut is not below: the goal is reached with best tokens of chunks.
  __device__ uint64_t bound(const Goal& goal, uint64_t limit) {
    uint64_t own = 0;
    for (int i = thread(); i < p_.chunks; i += kCutThreads) {
      const uint32_t order = order_of(s_.best[i]);
      const bool counts = order >= limit >> 32U;
      s_.list[i] = counts ? uint64_t{order} << 32U | static_cast<uint32_t>(i) : 0;
      own += counts ? 1 : 0;
    }
    const auto count = static_cast<int>(block_scan(own, s_.results).total);
    sort(p_.chunks);
    const uint64_t order = cut_list(count, {}, goal).order >> 32U << 32U;
    return order > limit ? order : limit;
  }

  /// Lists the tokens in [low, high]; their number, which may be more than the list holds.
  __device__ int list(uint64_t low, uint64_t high) {
    if (thread() == 0) s_.listed = 0;
    __syncthreads();
    visit(Visit::kList, low, high);
    __syncthreads();
    const int count = s_.listed;
    __syncthreads();
    return count;
  }

  /// Sorts the list, best first. Bitonic: in round (size, distance) entries `distance` apart are put into the order of
  /// their block of `size`.
  __device__ void sort(int count) {
    int padded = 2;
    while (padded < count) padded *= 2;
    for (int i = count + thread(); i < padded; i += kCutThreads) s_.list[i] = 0;
    __syncthreads();
    for (int size = 2; size <= padded; size *= 2) {
      for (int distance = size / 2; distance > 0; distance /= 2) {
        for (int i = thread(); i < padded / 2; i += kCutThreads) {
          const int first = i / distance * 2 * distance + i % distance;
          uint64_t& a = s_.list[first];
          uint64_t& b = s_.list[first + distance];
          const bool best_first = (first & size) == 0;
          if ((a < b) == best_first) {
            const uint64_t other = a;
            a = b;
            b = other;
          }
        }
        __syncthreads();
      }
    }
  }

  /// The cut in the sorted list.
  __device__ Cut cut_list(int count, const Counts& above, const Goal& goal) {
    const int each = (count + kCutThreads - 1) / kCutThreads;
    const int first = min(count, thread() * each);
    const int last = min(count, first + each);
    uint64_t own = 0;
    for (int i = first; i < last; ++i) own += units_of(s_.list[i]);
    if (thread() == 0) s_.cut = {};
    const BlockScan scan = block_scan(own, s_.results);
    uint64_t units = above.units + scan.before;
    for (int i = first; i < last; ++i) {
      const uint64_t tokens = above.tokens + static_cast<uint64_t>(i);
      const uint64_t next = units + units_of(s_.list[i]);
      if (goal.reached(tokens + 1, next) && !goal.reached(tokens, units)) s_.cut = {.order = s_.list[i], .units = next};
      units = next;
    }
    __syncthreads();
    const Cut cut = s_.cut;
    __syncthreads();
    return cut.order != 0 ? cut : Cut{.order = 0, .units = above.units + scan.total};
  }

  /// Counts the tokens in [low, high] and their units by bins.
  __device__ void count_bins(uint64_t low, uint64_t high, bool by_value) {
    for (int bin = 0; bin < kBins; ++bin) {
      s_.bins.units[bin][thread()] = 0;
      s_.bins.tokens[bin][thread()] = 0;
    }
    __syncthreads();  // the last edges have been read
    if (thread() < kBins) {
      const auto most = static_cast<uint32_t>(high >> 32U);
      const auto least = static_cast<uint32_t>(low >> 32U);
      const auto bin = static_cast<uint32_t>(thread());
      const float value = logit_of(most) + (logit_of(least) - logit_of(most)) * (static_cast<float>(bin) / kBins);
      const uint32_t order = most - static_cast<uint32_t>((uint64_t{most - least} * bin + kBins - 1) / kBins);
      s_.edges[bin] = bin == 0 ? most : by_value ? order_of(value) : order;
    }
    __syncthreads();
    visit(Visit::kCount, low, high);
    __syncthreads();
    for (int bin = warp_index(); bin < kBins; bin += kCutWarps) {
      uint64_t units = 0;
      uint32_t tokens = 0;
      for (int i = lane_index(); i < kCutThreads; i += 32) {
        units += s_.bins.units[bin][i];
        tokens += s_.bins.tokens[bin][i];
      }
      units = warp_sum(units);
      tokens = warp_sum(tokens);
      if (lane_index() == 0) {
        s_.bin_units[bin] = units;
        s_.bin_tokens[bin] = tokens;
      }
    }
    __syncthreads();
  }

  /// The cut among more equal logits than the list holds: by id.
  __device__ Cut cut_ties(uint64_t low, uint64_t high, const Counts& above, const Goal& goal) {
    const uint64_t each = units_of(high);
    uint64_t number = goal.tokens - above.tokens;  // of the tie that reaches the goal
    if (each > 0) {
      const uint64_t by_units = (goal.units - above.units - 1) / each + 1;
      number = by_units < number ? by_units : number;
    }
    for (int i = thread(); i < p_.chunks; i += kCutThreads) s_.ties[i] = 0;
    __syncthreads();
    visit(Visit::kTies, low, high);
    __syncthreads();
    uint64_t all = 0;
    const auto target = [&](uint64_t total) {
      all = total;
      return number - 1;
    };
    const Place place = locate(p_.chunks, [&](int i) { return uint64_t{s_.ties[i]}; }, target, s_.results, s_.place);
    if (place.item < 0) return {.order = 0, .units = above.units + all * each};
    visit(Visit::kTie, low, high);
    __syncthreads();
    return {.order = s_.cut.order, .units = above.units + number * each};
  }

  const Parameters& p_;
  int64_t row_;
  const Slot& slot_;
  float scale_;
  CutShared& s_;
  float best_ = 0.0F;
  int32_t exponent_ = 0;
};

}  // namespace quaver::sampling
