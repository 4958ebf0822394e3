// Values of a dummy matrix (dummy.h), made on the GPU.
#pragma once

#include <cstdint>

#include "core/bf16.h"
#include "core/cuda.h"

namespace quaver {

template <class T>
struct DummyFillArgs {
  T* out = nullptr;  ///< [count]
  int64_t count = 0;
  const T* table = nullptr;  ///< [65536] on the device
  uint64_t stream = 0;       ///< of random bits: dummy_stream()
};

/// out[i] as dummy_weights() makes value i of the matrix, bit for bit.
void dummy_fill(const DummyFillArgs<uint8_t>& args, cudaStream_t stream);
void dummy_fill(const DummyFillArgs<Bf16>& args, cudaStream_t stream);

}  // namespace quaver
