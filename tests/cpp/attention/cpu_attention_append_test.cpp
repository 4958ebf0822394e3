// The CPU path over a cache that append_kv() filled.
#include <gtest/gtest.h>

#include <cmath>

#include "attention/cpu_run.h"
#include "core/e4m3.h"
#include "kv_cache/page_format.h"
#include "quaver/kv_cache.h"

namespace quaver::testing {
namespace {

// Pages written by append_kv() are what the path reads.
TEST(CpuAttention, ReadsWhatAppendWrites) {
  const KvLayout kv{.num_kv_heads = 1, .head_dim_k = 64, .head_dim_v = 64, .page_size = 16};
  std::vector<float> k(static_cast<size_t>(20 * 64), 0.0F);
  std::vector<float> v;
  for (int token = 0; token < 20; ++token) {
    for (int d = 0; d < 64; ++d) v.push_back(token == d ? 16.0F : 0.0F);
  }
  std::vector<int64_t> slots;
  for (int64_t token = 0; token < 20; ++token) slots.push_back(token < 16 ? 16 + token : token - 16);  // pages 1, 0
  std::vector<uint8_t> pages(static_cast<size_t>(2 * page_format::page_bytes(kv)), kE4M3Nan);
  const TensorView pages_view(pages.data(), DType::kU8, {2, page_format::page_bytes(kv)});
  append_kv({.layout = kv,
             .k = ConstTensorView(k.data(), DType::kF32, {20, 1, 64}),
             .v = ConstTensorView(v.data(), DType::kF32, {20, 1, 64}),
             .slots = ConstTensorView(slots.data(), DType::kI64, {20}),
             .k_scale = {},
             .v_scale = {},
             .pages = pages_view});
  Case c({.query_lens = {1},
          .kv_lens = {20},
          .num_q_heads = 1,
          .kv = kv,
          .softmax_scale = 1.0F,
          .out_dtype = DType::kF32});
  const int32_t table[2] = {1, 0};
  c.args.pages = pages_view;
  c.args.block_table = {table, DType::kI32, {1, 2}};
  run(c);
  for (int64_t d = 0; d < 64; ++d) EXPECT_NEAR(c.out_f32[static_cast<size_t>(d)], d < 20 ? 0.8 : 0.0, 1e-6);
  EXPECT_NEAR(c.lse[0], std::log(20.0), 1e-6);
}

}  // namespace
}  // namespace quaver::testing
