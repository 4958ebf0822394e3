// A row in the registers of a CTA: see row_shape.h for who has what.
#pragma once

#include <cuda_bf16.h>

#include <type_traits>

#include "core/bf16.h"
#include "ops/cuda/row_shape.h"
#include "ptx/async_copy.cuh"
#include "ptx/barrier.cuh"
#include "ptx/cluster.cuh"

namespace quaver::device_ops {

/// 8 neighbouring columns in FP32.
struct Vector {
  float values[kVector];
};

/// Vectors of a thread where one CTA with one token has kVectors.
template <int kVectors, class Share>
inline constexpr int kThreadVectors = kVectors * Share::kTokens / Share::kCtas;

/// Lanes of a warp that have the same token.
template <class Share>
inline constexpr int kTokenLanes = 32 / Share::kTokens;

/// Chunk of 128 columns in which the thread's vector `v` lies: one of 16 lanes.
template <class Share>
[[nodiscard]] __device__ __forceinline__ int chunk_of(int v) {
  constexpr int kNeighbours = kThreadVectors<1, Share>;
  const int threads = Share::kTokens == 1 ? static_cast<int>(threadIdx.x)
                                          : static_cast<int>(threadIdx.x / 32) * kNeighbours * 16 +
                                                static_cast<int>(blockIdx.x % Share::kCtas * (blockDim.x / 2));
  return threads / 16 + v % kNeighbours + v / kNeighbours * static_cast<int>(blockDim.x / 16);
}

/// First column of the thread's vector `v`.
template <class Share>
[[nodiscard]] __device__ __forceinline__ int first_column(int v) {
  return chunk_of<Share>(v) * packed_fp8::kChunk + static_cast<int>(threadIdx.x % 16) * kVector;
}

/// Does a CTA go on to other tokens?
template <class Share>
inline constexpr bool kGoesOn = std::is_same_v<Share, TwoTokens> || std::is_same_v<Share, TokenPairs>;

/// The tokens of a CTA, and the one among them that the thread works on.
template <class Share>
class TokenLoop {
 public:
  __device__ explicit TokenLoop(int64_t num_tokens)
      : begin_(blockIdx.x / Share::kCtas * Share::kTokens), num_tokens_(static_cast<unsigned>(num_tokens)) {}
  /// -1: none.
  [[nodiscard]] __device__ int token() const {
    const unsigned token = begin_ + threadIdx.x % 32 / kTokenLanes<Share>;
    return token < num_tokens_ ? static_cast<int>(token) : -1;
  }
  /// 0 or 1 in turn: which scratch memory to use.
  [[nodiscard]] __device__ int parity() const { return parity_; }
  __device__ void advance() {
    if (!kGoesOn<Share>) return;
    begin_ += gridDim.x * Share::kTokens;
    parity_ ^= 1;
  }
  /// After advance(), for all threads of the CTA alike: there are tokens.
  [[nodiscard]] __device__ bool more() const { return kGoesOn<Share> && begin_ < num_tokens_; }

 private:
  unsigned begin_;
  unsigned num_tokens_;  // up to INT32_MAX, so that begin_ does not overflow
  int parity_ = 0;
};

[[nodiscard]] __device__ __forceinline__ Vector to_floats(const uint4& raw) {
  const uint32_t words[] = {raw.x, raw.y, raw.z, raw.w};
  Vector vector;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    vector.values[2 * i] = __uint_as_float(words[i] << 16);
    vector.values[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000U);
  }
  return vector;
}

[[nodiscard]] __device__ __forceinline__ uint4 to_bf16_vector(const Vector& vector) {
  const auto pair = [&](int i) {
    const __nv_bfloat162 values = __floats2bfloat162_rn(vector.values[i], vector.values[i + 1]);
    return *reinterpret_cast<const uint32_t*>(&values);
  };
  return {pair(0), pair(2), pair(4), pair(6)};
}

/// 16 bytes that a kernel before this one wrote: past L1, whose lines may be older than griddepcontrol.wait.
[[nodiscard]] __device__ __forceinline__ uint4 load_vector(const Bf16* values) {
  return __ldcg(reinterpret_cast<const uint4*>(values));
}

__device__ __forceinline__ void store_vector(Bf16* values, const uint4& vector) {
  *reinterpret_cast<uint4*>(values) = vector;
}

/// 8 values of an array that no kernel of a step writes: norm weights.
[[nodiscard]] __device__ __forceinline__ Vector load_constants(const float* constants) {
  const float4 low = __ldg(reinterpret_cast<const float4*>(constants));
  const float4 high = __ldg(reinterpret_cast<const float4*>(constants) + 1);
  return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
}

[[nodiscard]] __device__ __forceinline__ Vector load_floats(const float* values) {
  const float4 low = *reinterpret_cast<const float4*>(values);
  const float4 high = *(reinterpret_cast<const float4*>(values) + 1);
  return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
}

/// The thread's columns of a row in FP32; zeros beyond the row.
template <int kVectors>
struct Row {
  static constexpr int kCount = kVectors;
  Vector vectors[kVectors];
  [[nodiscard]] __device__ const Vector& get(int v) const { return vectors[v]; }
};

/// The same as it lies in memory: half the registers.
template <int kVectors>
struct RawRow {
  static constexpr int kCount = kVectors;
  uint4 vectors[kVectors];
  [[nodiscard]] __device__ Vector get(int v) const { return to_floats(vectors[v]); }
};

template <int kVectors>
[[nodiscard]] __device__ __forceinline__ Row<kVectors> to_row(const RawRow<kVectors>& raw) {
  Row<kVectors> row;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) row.vectors[v] = raw.get(v);
  return row;
}

template <int kVectors, class Share>
[[nodiscard]] __device__ __forceinline__ RawRow<kThreadVectors<kVectors, Share>> load_row(const Bf16* row,
                                                                                          int columns) {
  RawRow<kThreadVectors<kVectors, Share>> raw;
#pragma unroll
  for (int v = 0; v < raw.kCount; ++v) {
    const int column = first_column<Share>(v);
    raw.vectors[v] = column < columns ? load_vector(row + column) : uint4{};
  }
  return raw;
}

/// Rows that a thread has its vectors of, one after another. Few tokens: a single row, in registers.
template <int kVectors, class Share>
class RowStream {
 public:
  static constexpr int kCount = kThreadVectors<kVectors, Share>;
  __device__ explicit RowStream(int /*number*/) {}
  __device__ __forceinline__ void fetch(int v, const Bf16* row, int columns) {
    const int column = first_column<Share>(v);
    raw_.vectors[v] = column < columns ? load_vector(row + column) : uint4{};
  }
  __device__ __forceinline__ void wait() const {}
  [[nodiscard]] __device__ __forceinline__ Vector get(int v) const { return raw_.get(v); }

 private:
  RawRow<kCount> raw_;
};

extern __shared__ uint4 row_memory[];

/// The thread's vectors of a row on their way through places of shared memory that are its own, so that nobody waits
/// for others. `number`: of the row in its kernel.
template <int kVectors, class Share>
class StagedRow {
 public:
  static constexpr int kCount = kThreadVectors<kVectors, Share>;
  __device__ explicit StagedRow(int number)
      : places_(row_memory + number * kCount * static_cast<int>(blockDim.x) + threadIdx.x) {}
  __device__ __forceinline__ void fetch(int v, const Bf16* row, int columns) {
    const int column = first_column<Share>(v);
    ptx::copy_async(place(v), row + (column < columns ? column : 0), column < columns);
  }
  /// What any row of the thread has fetched is there.
  __device__ __forceinline__ void wait() const { ptx::wait_async_copies(); }
  [[nodiscard]] __device__ __forceinline__ Vector get(int v) const {
    const uint4 raw = *place(v);  // as a whole: parts of it would be loads of their own
    return to_floats(raw);
  }

 private:
  [[nodiscard]] __device__ __forceinline__ uint4* place(int v) const {
    return places_ + v * static_cast<int>(blockDim.x);
  }
  uint4* places_;
};

/// Many tokens: while a row is worked on, the next one comes into shared memory. A vector is read before the next is
/// fetched.
template <int kVectors>
class RowStream<kVectors, TwoTokens> : public StagedRow<kVectors, TwoTokens> {
 public:
  using StagedRow<kVectors, TwoTokens>::StagedRow;
};

/// Weights of a norm, which are the same for all tokens; zeros beyond the row. Few tokens: in registers before the
/// kernel in front has ended, by loads that stay in front of the wait (those of __ldg do not).
template <int kVectors, class Share>
class NormWeights {
 public:
  __device__ __forceinline__ NormWeights(const float* weights, int columns) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int column = first_column<Share>(v);
      if (column < columns) vectors_[v] = load_floats(weights + column);
    }
  }
  [[nodiscard]] __device__ __forceinline__ Vector get(int v) const { return vectors_[v]; }

 private:
  Vector vectors_[kVectors]{};
};

/// Many tokens: from L1 whenever it is asked for.
template <int kVectors, class Share>
  requires(Share::kRows > 1)
class NormWeights<kVectors, Share> {
 public:
  __device__ __forceinline__ NormWeights(const float* weights, int columns) : weights_(weights), columns_(columns) {}
  [[nodiscard]] __device__ __forceinline__ Vector get(int v) const {
    const int column = first_column<Share>(v);
    return column < columns_ ? load_constants(weights_ + column) : Vector{};
  }

 private:
  const float* weights_;
  int columns_;
};

struct Add {
  __device__ float operator()(float a, float b) const { return a + b; }
};

/// Of magnitudes; a NaN counts for nothing, as on the CPU.
struct Max {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

/// `value` of `kLanes` neighbouring lanes combined, in every one of them.
template <int kLanes, class Combine>
[[nodiscard]] __device__ __forceinline__ float reduce_lanes(float value, Combine combine) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(~0U, value, distance));
  }
  return value;
}

/// What a CTA gets from the other one of its cluster: a value of each token.
struct Exchange {
  float4 received[2];
  uint64_t full;
};
struct NoExchange {};

/// Memory of a reduction: one float a warp of each token, zero where there is no warp.
template <class Share>
struct Scratch {
  static constexpr int kWarps = 16;
  static constexpr int kTokens = Share::kTokens * Share::kRows;
  alignas(16) float values[kTokens][kWarps];
  alignas(16) std::conditional_t<Share::kCtas == 1, NoExchange, Exchange> exchange;
};

/// One for each reduction of a token, and others for the next token, so that one barrier a reduction does.
template <int kReductions, class Share>
struct Scratches {
  Scratch<Share> all[kGoesOn<Share> ? 2 : 1][kReductions];

  /// Before the first reduction, whose barrier it needs. By all threads of the cluster.
  __device__ __forceinline__ void prepare() {
    const auto thread = static_cast<int>(threadIdx.x);
    for (auto& token : all) {
      for (auto& scratch : token) {
        constexpr int kSize = Scratch<Share>::kTokens * Scratch<Share>::kWarps;  // at most 32: the first warp's
        const bool no_warp = thread % Scratch<Share>::kWarps >= static_cast<int>(blockDim.x / 32);
        if (thread < kSize && no_warp) (&scratch.values[0][0])[thread] = 0.0F;
        if constexpr (Share::kCtas > 1) {
          if (thread == 0) ptx::mbarrier_init(ptx::shared_address(&scratch.exchange.full), 1);
        }
      }
    }
    if constexpr (Share::kCtas > 1) {
      if (thread == 0) ptx::fence_mbarrier_init();
      ptx::cluster_arrive();
      ptx::cluster_wait();
    }
  }
};

/// `value` of this CTA and of the other one of the cluster combined.
template <class Combine>
[[nodiscard]] __device__ __forceinline__ float reduce_cluster(float value, Exchange& exchange, Combine combine) {
  const auto thread = static_cast<int>(threadIdx.x);
  const int token = thread % 32 / 16;
  const uint32_t full = ptx::shared_address(&exchange.full);
  if (thread == 0) ptx::mbarrier_arrive_expect(full, sizeof(exchange.received));
  if (thread < 32 && thread % 16 == 0) {
    const int other = 1 - static_cast<int>(blockIdx.x % 2);
    ptx::store_async(ptx::cluster_address(ptx::shared_address(&exchange.received[token]), other),
                     make_float4(value, 0.0F, 0.0F, 0.0F), ptx::cluster_address(full, other));
  }
  ptx::mbarrier_wait_cluster(full, 0);
  return combine(value, exchange.received[token].x);
}

/// The values of a token's warps combined; 0 is neutral. Pairs i and i + 8, then i + 4, … as in a tree over lanes.
template <class Combine>
[[nodiscard]] __device__ __forceinline__ float combine_warps(const float* values, Combine combine) {
  const auto* const fours = reinterpret_cast<const float4*>(values);
  const auto both = [&](const float4& a, const float4& b) {
    return float4{combine(a.x, b.x), combine(a.y, b.y), combine(a.z, b.z), combine(a.w, b.w)};
  };
  const float4 four = both(both(fours[0], fours[2]), both(fours[1], fours[3]));
  return combine(combine(four.x, four.z), combine(four.y, four.w));
}

/// `value` of the threads of a token combined, in each of them; 0 is neutral.
template <class Share, class Combine>
[[nodiscard]] __device__ __forceinline__ float reduce_row(float value, Scratch<Share>& scratch, Combine combine) {
  value = reduce_lanes<kTokenLanes<Share>>(value, combine);
  const int lane = static_cast<int>(threadIdx.x % 32);
  float* const values = scratch.values[lane / kTokenLanes<Share>];
  if (lane % kTokenLanes<Share> == 0) values[threadIdx.x / 32] = value;
  __syncthreads();
  const float all = combine_warps(values, combine);
  if constexpr (Share::kCtas == 1) {
    return all;
  } else {
    return reduce_cluster(all, scratch.exchange, combine);
  }
}

/// A value of each row that a thread has columns of.
template <class Share>
struct Values {
  float of[Share::kRows];
};

/// The same for each row. Of two rows, lanes 0-15 go on with the first and lanes 16-31 with the second: the sums of
/// reduce_row() in its order.
template <class Share, class Combine>
[[nodiscard]] __device__ __forceinline__ Values<Share> reduce_rows(const Values<Share>& values, Scratch<Share>& scratch,
                                                                   Combine combine) {
  if constexpr (Share::kRows == 1) {
    return {reduce_row(values.of[0], scratch, combine)};
  } else {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const bool second = lane >= 16;
    const float other = __shfl_xor_sync(~0U, second ? values.of[0] : values.of[1], 16);
    const float value = reduce_lanes<16>(combine(second ? values.of[1] : values.of[0], other), combine);
    if (lane % 16 == 0) scratch.values[lane / 16][threadIdx.x / 32] = value;
    __syncthreads();
    return {combine_warps(scratch.values[0], combine), combine_warps(scratch.values[1], combine)};
  }
}

template <class AnyRow>
[[nodiscard]] __device__ __forceinline__ float sum_of_squares(const AnyRow& row) {
  float sum = 0.0F;
#pragma unroll
  for (int v = 0; v < AnyRow::kCount; ++v) {
    const Vector vector = row.get(v);
#pragma unroll
    for (const float value : vector.values) sum = fmaf(value, value, sum);
  }
  return sum;
}

}  // namespace quaver::device_ops
