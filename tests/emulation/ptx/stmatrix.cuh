// Emulates src/ptx/stmatrix.cuh: same names, same meaning.
#pragma once

#include <cstdint>
#include <cstring>

#include "simt/thread.h"

namespace quaver::ptx {

inline void stmatrix_x2_transposed(uint32_t address, uint32_t first, uint32_t second) {
  const auto rows = simt::exchange(0xFFFFFFFFU, "stmatrix", address);
  const int lane = simt::running().lane();
  for (int matrix = 0; matrix < 2; ++matrix) {
    const uint32_t pair = matrix == 0 ? first : second;
    for (int e = 0; e < 2; ++e) {  // element (lane / 4, column) goes to place lane / 4 of the line of its column
      const uint32_t line = rows.from(8 * matrix + lane % 4 * 2 + e);
      simt::expect(line % 16 == 0, "stmatrix: expected addresses that are multiples of 16");
      const auto half = static_cast<uint16_t>(pair >> 16 * e);
      std::memcpy(simt::shared_pointer(line + static_cast<uint32_t>(lane / 4 * 2), 2), &half, 2);
    }
  }
  simt::exchange(0xFFFFFFFFU, "stmatrix", 0);
}

inline void stmatrix_x4(uint32_t address, const uint32_t (&words)[4]) {
  const auto rows = simt::exchange(0xFFFFFFFFU, "stmatrix", address);
  const int lane = simt::running().lane();
  for (int matrix = 0; matrix < 4; ++matrix) {
    const uint32_t row = rows.from(8 * matrix + lane / 4);
    simt::expect(row % 16 == 0, "stmatrix: expected addresses that are multiples of 16");
    std::memcpy(simt::shared_pointer(row + static_cast<uint32_t>(lane % 4 * 4), 4), &words[matrix], 4);
  }
  simt::exchange(0xFFFFFFFFU, "stmatrix", 0);
}

}  // namespace quaver::ptx
