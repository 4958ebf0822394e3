// 0 * NaN must not reach O: values of tokens that no row sees.
#pragma once

#include "attention/decode_fp8/traits.h"
#include "kv_cache/page_format.h"

namespace quaver::decode_fp8 {

/// Zeroes the bytes of a V tile outside the tokens [first, last) in columns [first_column, first_column + columns). One
/// warpgroup; a proxy fence and a barrier must follow.
template <class Traits>
__device__ __forceinline__ void clear_unseen_values(uint8_t* value_tile, int first_column, int columns, int first,
                                                    int last) {
  for (int block = 0; block < Traits::kTile / 16; ++block) {
    const int from = first - 16 * block;  // tokens of the block to keep: [from, to)
    const int to = last - 16 * block;
    if (from <= 0 && to >= 16) continue;
    for (int column = static_cast<int>(threadIdx.x) % 128; column < columns; column += 128) {
      auto* group = reinterpret_cast<uint4*>(value_tile + (block * Traits::kHeadDim + first_column + column) * 16);
      uint32_t words[4] = {};
      if (from < 16 && to > 0) {
        *reinterpret_cast<uint4*>(words) = *group;
#pragma unroll
        for (int position = 0; position < 16; ++position) {
          const int token = page_format::v_position_token(position);
          if (token < from || token >= to) words[position / 4] &= ~(0xFFU << (8 * (position % 4)));
        }
      }
      *group = *reinterpret_cast<uint4*>(words);
    }
  }
}

}  // namespace quaver::decode_fp8
