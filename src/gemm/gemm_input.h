// What stands between the fused ops and a linear layer on the device: activations [M, K] as the weight's recipe wants
// them. The ops write it (src/ops/cuda), DeviceLinear reads it.
#pragma once

#include <cstdint>

#include "core/bf16.h"

namespace quaver {

/// How a linear layer takes its input: the device's side of ActivationQuant.
enum class InputKind : uint8_t {
  kBf16,      ///< BF16 rows
  kPerToken,  ///< E4M3, scale = amax(row) / 448
  kPerBlock,  ///< E4M3, the same over 128 columns of a row
  kStatic,    ///< E4M3, one scale from the checkpoint
};

/// Device memory; the buffers belong to the caller and may be larger than one step needs. Unused pointers may be null.
struct GemmInput {
  /// All but kBf16: packed_fp8/layout.h, packed_bytes(M, K) bytes, 16-byte aligned.
  uint8_t* packed = nullptr;
  /// kPerToken: [M]. kPerBlock: [ceil(K/128), scale_stride], 16-byte aligned. kStatic: one value.
  float* scales = nullptr;
  /// kPerToken: 1. kPerBlock: a multiple of 4, at least M rounded up to 8. kStatic: 0. As PackedTokens takes it.
  int64_t scale_stride = 1;
  Bf16* rows = nullptr;  ///< kBf16: dense [M, K], 16-byte aligned
  InputKind kind = InputKind::kBf16;
  float static_scale = 1.0F;  ///< kStatic: the op divides by it and stores it in scales[0]
};

}  // namespace quaver
