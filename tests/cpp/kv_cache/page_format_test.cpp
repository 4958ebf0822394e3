// The byte order of a page, from the pictures of docs/kv_cache_format.md.
#include "kv_cache/page_format.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

namespace quaver {
namespace {

constexpr KvLayout kFp8{
    .dtype = KvDtype::kE4M3, .num_kv_heads = 2, .head_dim_k = 256, .head_dim_v = 256, .page_size = 64};
constexpr KvLayout kBf16{
    .dtype = KvDtype::kBF16, .num_kv_heads = 2, .head_dim_k = 192, .head_dim_v = 128, .page_size = 16};

// K: [P/8][D/16][8][16], so LBO (next 16 dims) is 128 and SBO (next 8 tokens) is 8*D.
static_assert(page_format::k_offset(kFp8, 0, 0, 0) == 0);
static_assert(page_format::k_offset(kFp8, 0, 0, 15) == 15);
static_assert(page_format::k_offset(kFp8, 0, 1, 0) == 16);
static_assert(page_format::k_offset(kFp8, 0, 7, 15) == 127);
static_assert(page_format::k_offset(kFp8, 0, 0, 16) == 128);
static_assert(page_format::k_offset(kFp8, 0, 8, 0) == 2048);
static_assert(page_format::k_offset(kFp8, 0, 63, 255) == 16383);
static_assert(page_format::k_offset(kFp8, 1, 0, 0) == 32768);
// V: [P/16][D][16], so LBO (next 16 tokens) is 16*D and SBO (next 8 dims) is 128.
static_assert(page_format::v_offset(kFp8, 0, 0, 0) == 16384);
static_assert(page_format::v_offset(kFp8, 0, 1, 0) == 16384 + 1);
static_assert(page_format::v_offset(kFp8, 0, 8, 0) == 16384 + 2);
static_assert(page_format::v_offset(kFp8, 0, 2, 0) == 16384 + 4);
static_assert(page_format::v_offset(kFp8, 0, 15, 0) == 16384 + 15);
static_assert(page_format::v_offset(kFp8, 0, 0, 1) == 16384 + 16);
static_assert(page_format::v_offset(kFp8, 0, 0, 8) == 16384 + 128);
static_assert(page_format::v_offset(kFp8, 0, 16, 0) == 16384 + 4096);
static_assert(page_format::v_offset(kFp8, 1, 63, 255) == 65535);
static_assert(page_format::page_bytes(kFp8) == 65536);
static_assert(page_format::token_bytes(kFp8) == 1024);
// BF16: [P][Dk] then [P][Dv].
static_assert(page_format::k_offset(kBf16, 0, 1, 3) == 2 * (192 + 3));
static_assert(page_format::v_offset(kBf16, 0, 0, 0) == 2 * 192 * 16);
static_assert(page_format::v_offset(kBf16, 1, 2, 5) == 2 * ((192 + 128) * 16 + 192 * 16 + 2 * 128 + 5));
static_assert(page_format::page_bytes(kBf16) == 2 * 2 * (192 + 128) * 16);
// The pages of Gemma 4 31B: both kinds have 524,288 bytes.
static_assert(page_format::page_bytes({.num_kv_heads = 16, .head_dim_k = 256, .head_dim_v = 256, .page_size = 64}) ==
              524288);
static_assert(page_format::page_bytes({.num_kv_heads = 4, .head_dim_k = 512, .head_dim_v = 512, .page_size = 128}) ==
              524288);

TEST(PageFormat, VTokensOfAGroupInMmaOrder) {
  constexpr std::array<int, 16> kOrder{0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15};
  for (int position = 0; position < 16; ++position) {
    EXPECT_EQ(page_format::v_position_token(position), kOrder[static_cast<size_t>(position)]);
    EXPECT_EQ(page_format::v_token_position(kOrder[static_cast<size_t>(position)]), position);
  }
}

/// How often each byte of a page is the start of an element.
std::vector<int> element_starts(const KvLayout& layout) {
  std::vector<int> count(static_cast<size_t>(page_format::page_bytes(layout)), 0);
  for (int head = 0; head < layout.num_kv_heads; ++head) {
    for (int token = 0; token < layout.page_size; ++token) {
      for (int d = 0; d < layout.head_dim_k; ++d) {
        ++count.at(static_cast<size_t>(page_format::k_offset(layout, head, token, d)));
      }
      for (int d = 0; d < layout.head_dim_v; ++d) {
        ++count.at(static_cast<size_t>(page_format::v_offset(layout, head, token, d)));
      }
    }
  }
  return count;
}

TEST(PageFormat, EveryByteOfAPageBelongsToExactlyOneElement) {
  constexpr std::array<std::array<int, 2>, 11> kDims{{{16, 16},
                                                      {64, 64},
                                                      {80, 80},
                                                      {96, 96},
                                                      {128, 128},
                                                      {192, 192},
                                                      {192, 128},
                                                      {256, 256},
                                                      {64, 512},
                                                      {320, 320},
                                                      {512, 512}}};
  for (const KvDtype dtype : {KvDtype::kE4M3, KvDtype::kBF16}) {
    for (const auto& [dim_k, dim_v] : kDims) {
      for (const int page_size : {16, 32, 64, 128}) {
        for (const int heads : {1, 3}) {
          const KvLayout layout{
              .dtype = dtype, .num_kv_heads = heads, .head_dim_k = dim_k, .head_dim_v = dim_v, .page_size = page_size};
          check_layout(layout);
          const std::vector<int> count = element_starts(layout);
          const auto step = static_cast<size_t>(page_format::element_bytes(layout));
          for (size_t byte = 0; byte < count.size(); ++byte) {
            ASSERT_EQ(count[byte], byte % step == 0 ? 1 : 0) << "byte " << byte << " dims " << dim_k << "/" << dim_v;
          }
        }
      }
    }
  }
}

TEST(PageFormat, BlocksStartAtTheirFirstElement) {
  for (const KvLayout& layout : {kFp8, kBf16}) {
    for (int head = 0; head < 2; ++head) {
      EXPECT_EQ(page_format::k_block_offset(layout, head), page_format::k_offset(layout, head, 0, 0));
      EXPECT_EQ(page_format::v_block_offset(layout, head), page_format::v_offset(layout, head, 0, 0));
    }
  }
}

/// The message of the Error that check_layout() throws.
std::string refusal(const KvLayout& layout) {
  try {
    check_layout(layout);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(PageFormat, RefusesLayoutsThatNoPageCanHave) {
  const KvLayout good{.num_kv_heads = 1, .head_dim_k = 64, .head_dim_v = 64, .page_size = 16};
  EXPECT_EQ(refusal(good), "accepted");
  for (const int page_size : {0, 1, 8, 24, 48, 256, -16}) {
    KvLayout bad = good;
    bad.page_size = page_size;
    EXPECT_NE(refusal(bad).find("page size " + std::to_string(page_size)), std::string::npos);
  }
  for (const int dim : {0, -16, 8, 40, 72, 100, 136}) {
    KvLayout bad = good;
    bad.head_dim_v = dim;
    EXPECT_NE(refusal(bad).find("head dim " + std::to_string(dim)), std::string::npos);
    std::swap(bad.head_dim_k, bad.head_dim_v);
    EXPECT_NE(refusal(bad).find("head dim " + std::to_string(dim)), std::string::npos);
  }
  KvLayout bf16 = good;
  bf16.dtype = KvDtype::kBF16;
  bf16.head_dim_k = 100;
  EXPECT_EQ(refusal(bf16), "accepted");
  KvLayout no_heads = good;
  no_heads.num_kv_heads = 0;
  EXPECT_NE(refusal(no_heads).find("kv heads 0"), std::string::npos);
}

}  // namespace
}  // namespace quaver
