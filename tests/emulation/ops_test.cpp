// The fused ops at small sizes: every kind of output, width of row, and way into the pages.
#include <gtest/gtest.h>

#include <algorithm>

#include "append_device.h"
#include "ops_qkv_case.h"
#include "ops_rows_case.h"
#include "simt/launch.h"

namespace quaver::testing {
namespace {

TEST(Ops, Embedding) {
  for (const int64_t columns : {8, 640, 5376}) {
    for (const int64_t tokens : {0, 1, 13}) check_embed(tokens, columns);
  }
}

TEST(Ops, RopeTableIsTheCpus) {
  check_rope_table(0, 256, 128, 1e4, 1.0);
  check_rope_table(1, 64, 3, 1e4, 1.0);
  check_rope_table(37, 256, 128, 1e6, 8.0);
  check_rope_table(11, 512, 64, 1e6, 1.0);
}

/// Widths with 1, 3 and 7 vectors a thread, whole chunks of 128 columns and not.
class OpsRows : public ::testing::TestWithParam<InputKind> {
 protected:
  [[nodiscard]] static InputShape shape(int64_t tokens, int64_t columns) {
    return {.kind = GetParam(), .tokens = tokens, .columns = columns};
  }
};

TEST_P(OpsRows, NormQuantize) {
  for (const int64_t columns : {8, 200, 640, 1152, 2560}) {
    for (const int64_t tokens : {2, 7}) check_norm_quantize(shape(tokens, columns));
  }
  for (const int64_t tokens : {0, 1, 131}) check_norm_quantize(shape(tokens, 136));
  check_norm_quantize(shape(3, 5376));
  check_norm_quantize(shape(2, 8192));
  for (const int64_t columns : {8, 200, 2560}) check_norm_quantize(shape(133, columns));
}

TEST_P(OpsRows, AddNormQuantize) {
  for (const int64_t columns : {8, 200, 640, 1152, 3840}) {
    for (const int64_t tokens : {2, 5}) check_add_norm_quantize(shape(tokens, columns), 1.0F);
  }
  for (const int64_t tokens : {0, 1, 131}) check_add_norm_quantize(shape(tokens, 136), 0.37F);
  check_add_norm_quantize(shape(2, 5376), 0.8F);
  for (const int64_t columns : {8, 200, 2560}) check_add_norm_quantize(shape(133, columns), 0.8F);
}

TEST_P(OpsRows, GegluQuantize) {
  for (const int64_t columns : {8, 200, 2048, 6912, 10240}) {
    for (const int64_t tokens : {2, 5}) check_geglu_quantize(shape(tokens, columns));
  }
  for (const int64_t tokens : {0, 1, 131}) check_geglu_quantize(shape(tokens, 136));
  check_geglu_quantize(shape(2, 21504));
  for (const int64_t columns : {8, 200, 8448}) check_geglu_quantize(shape(133, columns));
}

// A CTA, or two, has one token in the one case and two in the other, and goes on to others in the last. (The emulated
// device has 2 SMs: up to 2 tokens are few.)
TEST_P(OpsRows, TokenAloneHasTheSameBits) {
  for (const int64_t columns : {136, 2176}) check_rows_alone(shape(141, columns));
  check_rows_alone(shape(4301, 40));
}

INSTANTIATE_TEST_SUITE_P(Kinds, OpsRows, ::testing::ValuesIn(kInputKinds));

TEST(Ops, QuantizeGivesTheCpusCodes) {
  for (const InputKind kind : kE4M3Kinds) {
    for (const int64_t columns : {8, 200, 1024, 4096, 16384}) {
      for (const int64_t tokens : {2, 11}) check_quantize({kind, tokens, columns});
    }
    for (const int64_t tokens : {0, 1, 131, 133, 4301}) check_quantize({kind, tokens, 136});
    check_quantize({kind, 133, 8448});
  }
}

TEST(Ops, AddNormOfTheLastLayer) {
  check_add_norm(0, 640);
  check_add_norm(7, 640);
  check_add_norm(3, 2560);
}

TEST(Ops, LastRowsOfSequences) {
  for (const int64_t sequences : {0, 1, 7}) {
    for (const int64_t columns : {8, 640, 16384}) check_last_rows(sequences, columns);
  }
}

TEST(Ops, FinalNormGathersRows) {
  for (const int64_t rows : {0, 1, 11}) check_final_norm(rows, 640);
  check_final_norm(5, 5376);
}

// Lanes, warps and CTAs in any order: no sum or scale is read before it is complete.
TEST(Ops, AnyOrderOfThreads) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const simt::RandomOrder order(seed);
    for (const int64_t tokens : {2, 3}) {
      check_add_norm_quantize({InputKind::kPerToken, tokens, 2560}, 0.9F);
      check_norm_quantize({InputKind::kPerBlock, tokens, 640});
    }
    check_geglu_quantize({InputKind::kPerToken, 2, 8448});
    check_quantize({InputKind::kPerToken, 2, 4096});
    check_rows_alone({InputKind::kPerToken, 135, 2176});
  }
}

KvLayout layout(KvDtype dtype, int heads, int dim, int page_size) {
  return {.dtype = dtype, .num_kv_heads = heads, .head_dim_k = dim, .head_dim_v = dim, .page_size = page_size};
}

/// A mixed step: single tokens on pages of their own, two skipped, then `prompt` tokens of a prompt from the middle of
/// a block.
std::vector<int64_t> mixed_slots(int page_size, int prompt = 53) {
  std::vector<int64_t> slots{3, page_size + 7, -1, 2 * page_size, 3 * page_size + 15};
  for (int64_t i = 0; i < prompt; ++i) slots.push_back(4 * page_size + 11 + i);
  slots[30] = -1;
  return slots;
}

TEST(OpsQkv, EveryHeadDim) {
  for (const KvDtype dtype : {KvDtype::kE4M3, KvDtype::kBF16}) {
    for (const int dim : {64, 80, 128, 256, 512}) {
      for (const int prompt : {53, 130}) {
        SCOPED_TRACE(concat(kv_dtype_name(dtype), " ", dim, ", prompt of ", prompt));
        check_qkv_append({.layout = layout(dtype, 2, dim, 16),
                          .num_q_heads = 3,
                          .rotary_pairs = dim / 2,
                          .scaled = dtype == KvDtype::kE4M3,
                          .slots = mixed_slots(16, prompt),
                          .num_pages = 14});
      }
    }
  }
}

// Gemma 4's full layers: K = V, 64 of 256 pairs rotate, V normed. Gemma 3's full layers: angles divided by 8.
TEST(OpsQkv, PartialRotationKIsVAndRopeScaling) {
  for (const KvDtype dtype : {KvDtype::kE4M3, KvDtype::kBF16}) {
    check_qkv_append({.layout = layout(dtype, 1, 512, 32),
                      .num_q_heads = 2,
                      .rotary_pairs = 64,
                      .theta = 1e6,
                      .k_eq_v = true,
                      .v_norm = true,
                      .slots = mixed_slots(32),
                      .num_pages = 7});
    check_qkv_append({.layout = layout(dtype, 1, 64, 64),
                      .num_q_heads = 4,
                      .rotary_pairs = 13,
                      .theta = 1e6,
                      .rope_factor = 8.0,
                      .v_norm = true,
                      .slots = mixed_slots(64),
                      .num_pages = 7});
  }
}

// V by tiles and, of at most 128 tokens, by warps.
TEST(OpsQkv, Slots) {
  const auto check = [](const std::vector<int64_t>& slots) {
    for (const int dim : {64, 256}) {
      check_qkv_append({.layout = layout(KvDtype::kE4M3, 1, dim, 16),
                        .num_q_heads = 1,
                        .rotary_pairs = 32,
                        .v_norm = true,
                        .slots = slots,
                        .num_pages = 20});
    }
  };
  check({});
  check({17});
  check({-1});
  check(std::vector<int64_t>(19, -1));
  check(consecutive(0, 16));
  check(consecutive(16, 96));
  check(consecutive(5, 107));
  check(shuffled(61, 128, 2));
  check(shuffled(140, 320, 3));
  check(consecutive(7, 160));
  std::vector<int64_t> descending = consecutive(0, 48);
  std::reverse(descending.begin(), descending.end());
  check(descending);
}

TEST(OpsQkv, TokenAloneHasTheSameBits) {
  QkvSpec spec{.layout = layout(KvDtype::kE4M3, 5, 64, 16),
               .num_q_heads = 9,
               .rotary_pairs = 32,
               .slots = consecutive(9, 600),
               .num_pages = 39};
  for (const int64_t token : {0, 8, 599}) check_token_alone(spec, token);
  spec.layout = layout(KvDtype::kE4M3, 2, 256, 16);
  spec.slots = consecutive(9, 140);
  for (const int64_t token : {0, 8, 139}) check_token_alone(spec, token);
}

// Enough tokens that warps and CTAs take several heads: an odd number of them, and a last share with fewer.
TEST(OpsQkv, SeveralHeadsAWarp) {
  const simt::RandomOrder order(1);
  check_qkv_append({.layout = layout(KvDtype::kE4M3, 11, 64, 64),
                    .num_q_heads = 13,
                    .rotary_pairs = 32,
                    .v_norm = true,
                    .scaled = true,
                    .slots = consecutive(9, 900),
                    .num_pages = 15});
}

}  // namespace
}  // namespace quaver::testing
