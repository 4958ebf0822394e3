// Where and how the values of a new token go into a page: the write half of the append kernels, and of any kernel that
// makes K and V rows itself. Threads may write any part of any rows in any order: no two values share a byte.
#pragma once

#include <cstdint>

#include "core/bf16.h"
#include "kv_cache/page_format.h"
#include "ptx/convert.cuh"

namespace quaver::append {

/// One layer's pages.
struct Target {
  uint8_t* pages = nullptr;
  int64_t page_stride = 0;  ///< bytes
  int page_shift = 0;       ///< log2 of the page size
  KvLayout layout{};

  [[nodiscard]] __device__ uint8_t* page(int64_t slot) const { return pages + (slot >> page_shift) * page_stride; }
  [[nodiscard]] __device__ int token(int64_t slot) const { return static_cast<int>(slot) & (layout.page_size - 1); }
  /// K[head][dim] of the token at `slot`; in an FP8 page the 16 codes from a multiple of 16 lie together.
  [[nodiscard]] __device__ uint8_t* k(int64_t slot, int head, int dim) const {
    return page(slot) + page_format::k_offset(layout, head, token(slot), dim);
  }
  /// V[head][dim] of the token at `slot`; in an FP8 page the codes of 16 tokens lie together: see v_block_codes().
  [[nodiscard]] __device__ uint8_t* v(int64_t slot, int head, int dim) const {
    return page(slot) + page_format::v_offset(layout, head, token(slot), dim);
  }
};

inline constexpr int kVBlock = 16;  ///< tokens whose values of a column share 16 bytes of an FP8 page

/// Tokens of a V tile [first, first + 16): which begin a whole block (at most one), which are written byte by byte. A
/// whole block is 16 consecutive tokens in 16 consecutive slots from a multiple of 16; it belongs to the tile it begins
/// in.
struct VTile {
  uint32_t whole = 0;   ///< bit l: token first - 16 + l begins one
  uint32_t ragged = 0;  ///< bit l: token first - 16 + l belongs to none
  int64_t slot = -1;    ///< lane l: slot of token first - 16 + l
};

/// By a whole warp; `slot_of(token)` is -1 outside the batch.
template <class SlotOf>
__device__ __forceinline__ VTile find_blocks(SlotOf slot_of, int64_t first, int lane) {
  const int64_t token = first - kVBlock + lane;
  const int64_t near = slot_of(token);
  const int64_t far = slot_of(token + 32);
  // Bit l: token first - 16 + l has the slot in front of its successor's.
  const uint32_t joins_near = __ballot_sync(~0U, near >= 0 && slot_of(token + 1) == near + 1);
  const uint32_t joins_far = __ballot_sync(~0U, far >= 0 && slot_of(token + 33) == far + 1);
  const uint64_t joins = static_cast<uint64_t>(joins_far) << 32 | joins_near;
  const int in_block = static_cast<int>(near) & (kVBlock - 1);
  const bool own = lane >= kVBlock && near >= 0;
  const bool whole = own && (joins >> (own ? lane - in_block : 0) & 0x7FFFU) == 0x7FFFU;
  return {
      .whole = __ballot_sync(~0U, whole && in_block == 0), .ragged = __ballot_sync(~0U, own && !whole), .slot = near};
}

/// 16 bytes whose byte i is `code_of(i)`.
template <class CodeOf>
[[nodiscard]] __device__ __forceinline__ uint4 sixteen_codes(CodeOf code_of) {
  uint32_t words[4];
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    words[word] = 0;
#pragma unroll
    for (int byte = 0; byte < 4; ++byte) {
      words[word] |= static_cast<uint32_t>(code_of(4 * word + byte)) << (8 * byte);
    }
  }
  return {words[0], words[1], words[2], words[3]};
}

/// fp32(1/scale) of a head; 1.0 without scales.
__device__ __forceinline__ float inverse_scale(const float* scales, int64_t stride, int head) {
  return scales == nullptr ? 1.0F : 1.0F / __ldg(scales + head * stride);
}

/// Two BF16 values of a 32-bit word, the first in the low half.
__device__ __forceinline__ float2 unpack(uint32_t word) {
  return {__uint_as_float(word << 16), __uint_as_float(word & 0xFFFF0000U)};
}

/// value * inverse as an E4M3 code.
__device__ __forceinline__ uint8_t code(float value, float inverse) {
  return static_cast<uint8_t>(ptx::to_e4m3x2(value * inverse, 0.0F));
}

/// Four BF16 values times `inverse` as E4M3 codes.
__device__ __forceinline__ uint32_t codes4(uint32_t first, uint32_t second, float inverse) {
  const float2 a = unpack(first);
  const float2 b = unpack(second);
  return ptx::to_e4m3x4(a.x * inverse, a.y * inverse, b.x * inverse, b.y * inverse);
}

/// 16 BF16 values of a row times `inverse`: the 16 bytes at Target::k().
__device__ __forceinline__ uint4 k_codes(uint4 low, uint4 high, float inverse) {
  return {codes4(low.x, low.y, inverse), codes4(low.z, low.w, inverse), codes4(high.x, high.y, inverse),
          codes4(high.z, high.w, inverse)};
}

/// One column of the 16 tokens of a block times `inverse`, `values(u)` that of token u: the 16 bytes at Target::v() of
/// the block's first slot.
template <class Values>
__device__ __forceinline__ uint4 v_block_codes(Values values, float inverse) {
  uint32_t words[4];
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    const auto scaled = [&](int byte) { return values(page_format::v_position_token(4 * word + byte)) * inverse; };
    words[word] = ptx::to_e4m3x4(scaled(0), scaled(1), scaled(2), scaled(3));
  }
  return {words[0], words[1], words[2], words[3]};
}

/// value * inverse as BF16. A NaN keeps its payload and becomes quiet, as on the CPU; the GPU's product would lose it.
__device__ __forceinline__ Bf16 scaled_bf16(Bf16 value, float inverse) {
  const bool nan = (value.bits & 0x7FFFU) > 0x7F80U;
  return nan ? Bf16{static_cast<uint16_t>(value.bits | 0x40U)} : to_bf16(to_float(value) * inverse);
}

}  // namespace quaver::append
