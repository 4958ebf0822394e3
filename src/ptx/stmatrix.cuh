// Accumulator fragments to shared memory. One instruction per function.
#pragma once

#include <cstdint>

namespace quaver::ptx {

/// PTX ISA "stmatrix", two 8x8 matrices of 16-bit elements, transposed. Thread t holds elements (t/4, 2(t%4)) and
/// (t/4, 2(t%4) + 1) of each; lane 8i + r gives the address of column r of matrix i: 16 bytes, 16-byte aligned.
__device__ __forceinline__ void stmatrix_x2_transposed(uint32_t address, uint32_t first, uint32_t second) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared::cta.b16 [%0], {%1, %2};" ::"r"(address), "r"(first),
               "r"(second)
               : "memory");
}

/// The same for four matrices that stay as they are: lane 8i + r gives the address of row r of matrix i.
__device__ __forceinline__ void stmatrix_x4(uint32_t address, const uint32_t (&words)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words[0]),
               "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

}  // namespace quaver::ptx
