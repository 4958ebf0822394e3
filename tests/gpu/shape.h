// Shapes of attention calls with a name, for the tests that go through a list of them.
#pragma once

#include <cstdint>
#include <vector>

#include "testing/cases.h"

namespace quaver::testing {

struct Shape {
  const char* name;
  std::vector<int32_t> query_lens;
  std::vector<int32_t> kv_lens;
  int kv_heads = 1;
  int group = 1;
  int page_size = 64;
  int window = 0;
  float softcap = 0.0F;
  bool sinks = false;
  bool scales = false;
  bool descales = false;
  bool causal = true;
  DType out = DType::kF32;
  int span_len = 0;
};

/// `kv` gives head dims and dtype, the shape the rest.
[[nodiscard]] inline CaseSpec spec_of(const Shape& shape, KvLayout kv, uint64_t seed) {
  kv.num_kv_heads = shape.kv_heads;
  kv.page_size = shape.page_size;
  return {.query_lens = shape.query_lens,
          .kv_lens = shape.kv_lens,
          .num_q_heads = shape.kv_heads * shape.group,
          .kv = kv,
          .causal = shape.causal,
          .window = shape.window,
          .softcap = shape.softcap,
          .sinks = shape.sinks,
          .scales = shape.scales,
          .descales = shape.descales,
          .span_len = shape.span_len,
          .out_dtype = shape.out,
          .seed = seed};
}

}  // namespace quaver::testing
