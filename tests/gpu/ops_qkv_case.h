// qkv_append() against float64 and against what the CPU's norm, rotation and append make of the same rows. Shared by
// the GPU and the emulated machine.
#pragma once

#include <cstdint>
#include <vector>

#include "ops_rows_case.h"
#include "quaver/kv_cache.h"

namespace quaver::testing {

struct QkvSpec {
  KvLayout layout{};
  int num_q_heads = 1;
  int rotary_pairs = 0;
  double theta = 1e4;
  double rope_factor = 1.0;
  bool k_eq_v = false;
  bool v_norm = false;
  bool scaled = false;  ///< with k_scale and v_scale
  std::vector<int64_t> slots{};
  int64_t num_pages = 1;
};

/// Q in place within a BF16 rounding of float64, K and V untouched; every byte of the pages the CPU's but for roundings
/// that FP32's last bits decide. Twice, with the same bits.
void check_qkv_append(const QkvSpec& spec);

/// Token `token` of the step and the same token alone: the same bits of Q and of its bytes in the pages.
void check_token_alone(const QkvSpec& spec, int64_t token);

}  // namespace quaver::testing
