// The fused ops on the GPU: every kind of output at the widths of Gemma 3 and 4, 0 to 8,320 tokens.
#include <gtest/gtest.h>

#include <algorithm>

#include "append_device.h"
#include "ops_qkv_case.h"
#include "ops_rows_case.h"

namespace quaver::testing {
namespace {

constexpr int64_t kMostTokens = 8192 + 128;

TEST(Ops, Embedding) {
  for (const int64_t columns : {8, 640, 1152, 2560, 3840, 5376, 8192}) {
    for (const int64_t tokens : {0, 1, 128, 131}) check_embed(tokens, columns);
  }
  check_embed(kMostTokens, 640);
}

TEST(Ops, RopeTableIsTheCpus) {
  check_rope_table(0, 256, 128, 1e4, 1.0);
  check_rope_table(1, 64, 3, 1e4, 1.0);
  check_rope_table(1031, 256, 128, 1e6, 8.0);
  check_rope_table(kMostTokens, 512, 64, 1e6, 1.0);
}

class OpsRows : public ::testing::TestWithParam<InputKind> {
 protected:
  [[nodiscard]] static InputShape shape(int64_t tokens, int64_t columns) {
    return {.kind = GetParam(), .tokens = tokens, .columns = columns};
  }
};

TEST_P(OpsRows, NormQuantize) {
  for (const int64_t columns : {8, 200, 640, 1152, 2560, 3840, 5376, 8192}) {
    for (const int64_t tokens : {37, 135}) check_norm_quantize(shape(tokens, columns));
  }
  for (const int64_t tokens : {0, 1, 131}) check_norm_quantize(shape(tokens, 5376));
  check_norm_quantize(shape(kMostTokens, 136));
}

TEST_P(OpsRows, AddNormQuantize) {
  for (const int64_t columns : {8, 200, 640, 1152, 2560, 3840, 5376, 8192}) {
    for (const int64_t tokens : {37, 135}) check_add_norm_quantize(shape(tokens, columns), 1.0F);
  }
  for (const int64_t tokens : {0, 1, 131}) check_add_norm_quantize(shape(tokens, 5376), 0.37F);
  check_add_norm_quantize(shape(kMostTokens, 136), 0.37F);
}

TEST_P(OpsRows, GegluQuantize) {
  for (const int64_t columns : {8, 200, 2048, 6912, 10240, 15360, 21504}) {
    for (const int64_t tokens : {17, 135}) check_geglu_quantize(shape(tokens, columns));
  }
  for (const int64_t tokens : {0, 1, 131}) check_geglu_quantize(shape(tokens, 21504));
  check_geglu_quantize(shape(kMostTokens, 136));
}

// A CTA has one token in the one case and two in the other, and goes on to others where there are many.
TEST_P(OpsRows, TokenAloneHasTheSameBits) {
  for (const int64_t columns : {200, 640, 2560, 5376, 8192}) check_rows_alone(shape(141, columns));
  check_rows_alone(shape(1033, 5376));
}

INSTANTIATE_TEST_SUITE_P(Kinds, OpsRows, ::testing::ValuesIn(kInputKinds));

TEST(Ops, QuantizeGivesTheCpusCodes) {
  for (const InputKind kind : kE4M3Kinds) {
    for (const int64_t columns : {8, 200, 1024, 2048, 4096, 8192, 16384, 21504}) {
      for (const int64_t tokens : {37, 135}) check_quantize({kind, tokens, columns});
    }
    for (const int64_t tokens : {0, 1, 131}) check_quantize({kind, tokens, 8192});
    check_quantize({kind, kMostTokens, 136});
  }
}

TEST(Ops, AddNormOfTheLastLayer) {
  for (const int64_t columns : {640, 5376}) {
    for (const int64_t tokens : {0, 1, 131}) check_add_norm(tokens, columns);
  }
}

TEST(Ops, LastRowsOfSequences) {
  for (const int64_t sequences : {0, 1, 131}) {
    for (const int64_t columns : {8, 640, 5376, 8192, 16384}) check_last_rows(sequences, columns);
  }
}

TEST(Ops, FinalNormGathersRows) {
  for (const int64_t rows : {0, 1, 128}) {
    for (const int64_t columns : {640, 5376}) check_final_norm(rows, columns);
  }
}

KvLayout layout(KvDtype dtype, int heads, int dim, int page_size) {
  return {.dtype = dtype, .num_kv_heads = heads, .head_dim_k = dim, .head_dim_v = dim, .page_size = page_size};
}

/// A mixed step: `decodes` single tokens on pages of their own, some skipped, then a piece of a prompt from the middle
/// of a block.
QkvSpec mixed_step(const KvLayout& layout, int64_t decodes, int64_t prompt) {
  QkvSpec spec{.layout = layout};
  const int64_t page = layout.page_size;
  for (int64_t i = 0; i < decodes; ++i) spec.slots.push_back(i % 29 == 3 ? -1 : i * page + i * 7 % page);
  for (int64_t i = 0; i < prompt; ++i) spec.slots.push_back(decodes * page + 5 + i);
  spec.num_pages = decodes + (prompt + 5) / page + 1;
  return spec;
}

TEST(OpsQkv, EveryHeadDim) {
  for (const KvDtype dtype : {KvDtype::kE4M3, KvDtype::kBF16}) {
    for (const int dim : {64, 80, 96, 128, 192, 256, 512}) {
      for (const int page_size : {16, 32, 64, 128}) {
        SCOPED_TRACE(concat(kv_dtype_name(dtype), " ", dim, ", page ", page_size));
        QkvSpec spec = mixed_step(layout(dtype, 2, dim, page_size), 21, 150);
        spec.num_q_heads = 3;
        spec.rotary_pairs = dim / 2;
        spec.scaled = dtype == KvDtype::kE4M3;
        check_qkv_append(spec);
      }
    }
  }
}

struct Model {
  const char* name;
  QkvSpec spec;
};

/// Heads and rotation of both kinds of layer.
std::vector<Model> models() {
  const auto model = [](const char* name, int q_heads, int kv_heads, int dim, QkvSpec rest) {
    rest.num_q_heads = q_heads;
    rest.layout = layout(KvDtype::kE4M3, kv_heads, dim, 64);
    if (rest.rotary_pairs == 0) rest.rotary_pairs = dim / 2;
    return Model{name, rest};
  };
  return {model("31B sliding", 32, 16, 256, {.v_norm = true}),
          model("31B full", 32, 4, 512, {.rotary_pairs = 64, .theta = 1e6, .k_eq_v = true, .v_norm = true}),
          model("27B full", 32, 16, 128, {.theta = 1e6, .rope_factor = 8.0}), model("270M", 4, 1, 256, {})};
}

TEST(OpsQkv, LayersOfGemma) {
  for (const Model& model : models()) {
    for (const KvDtype dtype : {KvDtype::kE4M3, KvDtype::kBF16}) {
      for (const auto& [decodes, prompt] : {std::pair<int64_t, int64_t>{1, 0}, {128, 0}, {127, 260}}) {
        SCOPED_TRACE(concat(model.name, " ", kv_dtype_name(dtype), ", ", decodes, " + ", prompt));
        QkvSpec spec = model.spec;
        spec.layout.dtype = dtype;
        const QkvSpec step = mixed_step(spec.layout, decodes, prompt);
        spec.slots = step.slots;
        spec.num_pages = step.num_pages;
        check_qkv_append(spec);
      }
    }
  }
}

// The largest step; 9 and 5 heads leave a last share with fewer than the others.
TEST(OpsQkv, MostTokens) {
  QkvSpec spec = mixed_step(layout(KvDtype::kE4M3, 5, 64, 64), 128, 8192);
  spec.num_q_heads = 9;
  spec.rotary_pairs = 32;
  check_qkv_append(spec);
}

TEST(OpsQkv, Slots) {
  for (const int dim : {64, 256, 512}) {
    const auto check = [&](std::vector<int64_t> slots) {
      check_qkv_append({.layout = layout(KvDtype::kE4M3, 2, dim, 16),
                        .num_q_heads = 1,
                        .rotary_pairs = dim / 2,
                        .v_norm = true,
                        .slots = std::move(slots),
                        .num_pages = 80});
    };
    check({});
    check({17});
    check({-1});
    check(std::vector<int64_t>(600, -1));
    check(consecutive(0, 16));
    check(consecutive(16, 640));
    check(consecutive(5, 613));
    check(shuffled(100, 260, 4));
    check(shuffled(300, 700, 2));
    std::vector<int64_t> descending = consecutive(0, 600);
    std::reverse(descending.begin(), descending.end());
    check(descending);
  }
}

// A token's bits do not depend on how many others there are, nor on how the heads are shared out.
TEST(OpsQkv, TokenAloneHasTheSameBits) {
  for (const Model& model : models()) {
    QkvSpec spec = model.spec;
    const QkvSpec step = mixed_step(spec.layout, 20, 700);
    spec.slots = step.slots;
    spec.num_pages = step.num_pages;
    for (const int64_t token : {0, 19, 20, 31, 719}) check_token_alone(spec, token);
  }
}

}  // namespace
}  // namespace quaver::testing
