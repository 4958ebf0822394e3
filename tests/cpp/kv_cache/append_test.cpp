// What append_kv() writes: every byte of every page is compared, so what it must leave alone is checked as well.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "append_case.h"

namespace quaver {
namespace {

using testing::AppendCase;
using testing::Random;

constexpr KvLayout kSmall{.num_kv_heads = 2, .head_dim_k = 64, .head_dim_v = 64, .page_size = 16};

std::vector<int64_t> consecutive(int64_t first, int64_t count) {
  std::vector<int64_t> slots(static_cast<size_t>(count));
  std::iota(slots.begin(), slots.end(), first);
  return slots;
}

std::vector<Bf16> as_bf16(const std::vector<float>& values) {
  std::vector<Bf16> out;
  for (const float value : values) out.push_back(to_bf16(value));
  return out;
}

/// Slots of a step over ragged sequences: chunks of consecutive tokens, single tokens, and padding.
std::vector<int64_t> ragged_slots(int64_t num_slots, Random& random) {
  std::vector<int64_t> slots;
  int64_t next = random.below(7);
  while (next < num_slots) {
    const int64_t run = std::min(num_slots - next, 1 + random.below(random.below(3) == 0 ? 41 : 3));
    for (int64_t i = 0; i < run; ++i) slots.push_back(next + i);
    if (random.below(4) == 0) slots.push_back(-1);
    next += run + random.below(19);
  }
  return slots;
}

TEST(Append, WritesEveryElementWhereTheFormatPutsItAndNothingElse) {
  Random random(7);
  constexpr int kDims[][2] = {{16, 16}, {64, 64}, {96, 96}, {192, 128}, {64, 512}, {256, 256}};
  for (const KvDtype dtype : {KvDtype::kE4M3, KvDtype::kBF16}) {
    for (const auto& [dim_k, dim_v] : kDims) {
      for (const int page_size : {16, 64, 128}) {
        const KvLayout layout{
            .dtype = dtype, .num_kv_heads = 3, .head_dim_k = dim_k, .head_dim_v = dim_v, .page_size = page_size};
        AppendCase append(layout, ragged_slots(256, random), 256 / page_size, random.bits());
        append.k_scale = {0.5F, 0.3F, 7.0F};
        append.v_scale = {1.0F, 0.0625F, 0.011F};
        const std::vector<uint8_t> expected = append.expected_pages();
        append_kv(append.args());
        ASSERT_EQ(append.pages, expected) << dim_k << "/" << dim_v << " page " << page_size;
      }
    }
  }
}

TEST(Append, Bf16RowsGiveTheBytesOfTheirFloats) {
  for (const KvDtype dtype : {KvDtype::kE4M3, KvDtype::kBF16}) {
    KvLayout layout = kSmall;
    layout.dtype = dtype;
    AppendCase append(layout, consecutive(5, 37), 3);
    append.k_scale = {0.3F, 2.0F};
    const std::vector<uint8_t> expected = append.expected_pages();
    const std::vector<Bf16> k = as_bf16(append.k);
    const std::vector<Bf16> v = as_bf16(append.v);
    AppendArgs args = append.args();
    args.k.data = k.data();
    args.k.dtype = DType::kBF16;
    args.v.data = v.data();
    args.v.dtype = DType::kBF16;
    append_kv(args);
    EXPECT_EQ(append.pages, expected);
  }
}

TEST(Append, ParallelAndShuffledAppendsGiveTheSameBytesAgain) {
  KvLayout layout = kSmall;
  layout.head_dim_k = layout.head_dim_v = 128;
  Random random(3);
  std::vector<int64_t> slots = consecutive(0, 640);  // large enough for threads
  for (size_t i = slots.size() - 1; i > 0; --i)
    std::swap(slots[i], slots[static_cast<size_t>(random.below(std::ssize(slots)))]);
  for (const auto& order : {consecutive(0, 640), slots}) {
    AppendCase append(layout, order, 40);
    const std::vector<uint8_t> before = append.pages;
    const std::vector<uint8_t> expected = append.expected_pages();
    for (int run = 0; run < 3; ++run) {
      append.pages = before;
      append_kv(append.args());
      ASSERT_EQ(append.pages, expected);
    }
  }
}

TEST(Append, NoTokensAndOnlySkippedTokensWriteNothing) {
  for (const auto& slots : {std::vector<int64_t>{}, std::vector<int64_t>{-1, -1, -1}}) {
    AppendCase append(kSmall, slots, 2);
    const std::vector<uint8_t> before = append.pages;
    append_kv(append.args());
    EXPECT_EQ(append.pages, before);
  }
}

// B05: None equals an explicit 1.0, bit for bit.
TEST(Append, NoScaleEqualsOne) {
  AppendCase append(kSmall, consecutive(3, 20), 2);
  const std::vector<uint8_t> before = append.pages;
  append_kv(append.args());
  const std::vector<uint8_t> without = append.pages;
  append.pages = before;
  append.k_scale = append.v_scale = {1.0F, 1.0F};
  append_kv(append.args());
  EXPECT_EQ(append.pages, without);
}

// B07: conversion edge cases reach the pages; the codes were computed independently of our codec.
TEST(Append, EdgeValuesBecomeTheRightCodes) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<std::pair<float, uint8_t>> cases{
      {448.0F, 0x7E},         {449.0F, 0x7E},         {464.0F, 0x7E},    {465.0F, 0x7E},
      {1e9F, 0x7E},           {infinity, 0x7E},       {-infinity, 0xFE}, {std::nanf(""), 0x7F},
      {-std::nanf(""), 0x7F}, {-0.0F, 0x80},          {0x1p-10F, 0x00},  {0x1p-10F * 1.0001F, 0x01},
      {0x1.8p-9F, 0x02},      {7.5F * 0x1p-9F, 0x08}, {1.0625F, 0x38},   {1.0625001F, 0x39},
      {1.1875F, 0x3A},        {248.0F, 0x78},         {232.0F, 0x76},    {1e-30F, 0x00}};
  const auto count = static_cast<int64_t>(cases.size());
  const KvLayout layout{.num_kv_heads = 1, .head_dim_k = 16, .head_dim_v = 16, .page_size = 32};
  AppendCase append(layout, consecutive(0, count), 1);  // a full group of 16 tokens and a ragged one
  for (int64_t t = 0; t < count; ++t) {
    for (int d = 0; d < 16; ++d) {
      append.k[static_cast<size_t>(16 * t + d)] = cases[static_cast<size_t>((t + d) % count)].first;
      append.v[static_cast<size_t>(16 * t + d)] = cases[static_cast<size_t>((t + 3 * d) % count)].first;
    }
  }
  append_kv(append.args());
  for (int64_t t = 0; t < count; ++t) {
    for (int d = 0; d < 16; ++d) {
      const auto token = static_cast<int>(t);
      EXPECT_EQ(append.pages[static_cast<size_t>(page_format::k_offset(layout, 0, token, d))],
                cases[static_cast<size_t>((t + d) % count)].second);
      EXPECT_EQ(append.pages[static_cast<size_t>(page_format::v_offset(layout, 0, token, d))],
                cases[static_cast<size_t>((t + 3 * d) % count)].second);
    }
  }
}

// B06: all-zero data is stored as zeros and comes back as zeros.
TEST(Append, ZerosStayZeros) {
  AppendCase append(kSmall, consecutive(0, 32), 2);
  std::ranges::fill(append.k, 0.0F);
  std::ranges::fill(append.v, 0.0F);
  append.k_scale = append.v_scale = {0x1p-126F, 0x1p126F};
  append_kv(append.args());
  const NaturalKv kv =
      read_back(kSmall, append.args().pages, std::vector<int32_t>{0, 1}, 32, append.k_scale, append.v_scale);
  EXPECT_TRUE(std::ranges::all_of(kv.k, [](float x) { return x == 0.0F; }));
  EXPECT_TRUE(std::ranges::all_of(kv.v, [](float x) { return x == 0.0F; }));
}

TEST(Append, ReadBackGivesTheQuantisedInput) {
  for (const KvDtype dtype : {KvDtype::kE4M3, KvDtype::kBF16}) {
    KvLayout layout = kSmall;
    layout.dtype = dtype;
    layout.head_dim_v = 96;
    // Tokens 0 … 39 of a sequence on the pages 4, 0, 2.
    std::vector<int64_t> slots = consecutive(64, 16);
    for (const int64_t slot : consecutive(0, 16)) slots.push_back(slot);
    for (const int64_t slot : consecutive(32, 8)) slots.push_back(slot);
    AppendCase append(layout, slots, 5);
    append.k_scale = {0.25F, 0.7F};
    append.v_scale = {3.0F, 0.125F};
    append_kv(append.args());
    const std::vector<int32_t> table{4, 0, 2};
    const NaturalKv kv = read_back(layout, append.args().pages, table, 40, append.k_scale, append.v_scale);
    const auto stored = [&](float x, float scale) {
      const float scaled = x * (1.0F / scale);
      return (dtype == KvDtype::kE4M3 ? e4m3_decode(e4m3_encode(scaled)) : to_float(to_bf16(scaled))) * scale;
    };
    ASSERT_EQ(kv.k.size(), append.k.size());
    ASSERT_EQ(kv.v.size(), append.v.size());
    for (size_t i = 0; i < kv.k.size(); ++i) EXPECT_EQ(kv.k[i], stored(append.k[i], append.k_scale[i / 64 % 2]));
    for (size_t i = 0; i < kv.v.size(); ++i) EXPECT_EQ(kv.v[i], stored(append.v[i], append.v_scale[i / 96 % 2]));
  }
}

// B20: the same values through other strides and alignments give the same bytes.
TEST(Append, StridedExpandedAndOffsetRows) {
  constexpr int kHeads = 2;
  constexpr int kDim = 64;
  constexpr int kQueryHeads = 3;
  constexpr int64_t kTokens = 37;
  AppendCase append(kSmall, consecutive(5, kTokens), 3);
  const std::vector<uint8_t> before = append.pages;
  const std::vector<uint8_t> expected = append.expected_pages();
  const auto run = [&](const ConstTensorView& k, const ConstTensorView& v) {
    append.pages = before;
    AppendArgs args = append.args();
    args.k = k;
    args.v = v;
    append_kv(args);
    return append.pages;
  };
  const AppendArgs dense = append.args();

  // Slices of a fused [T, Hq + 2 Hkv, D] buffer.
  constexpr int64_t kRow = (kQueryHeads + 2 * kHeads) * kDim;
  std::vector<float> fused(static_cast<size_t>(kTokens * kRow), std::nanf(""));
  for (int64_t t = 0; t < kTokens; ++t) {
    std::copy_n(&append.k[static_cast<size_t>(t * kHeads * kDim)], kHeads * kDim,
                &fused[static_cast<size_t>(t * kRow + kQueryHeads * kDim)]);
    std::copy_n(&append.v[static_cast<size_t>(t * kHeads * kDim)], kHeads * kDim,
                &fused[static_cast<size_t>(t * kRow + (kQueryHeads + kHeads) * kDim)]);
  }
  ConstTensorView k_slice = dense.k;
  k_slice.data = fused.data() + kQueryHeads * kDim;
  k_slice.strides[0] = kRow;
  ConstTensorView v_slice = dense.v;
  v_slice.data = fused.data() + (kQueryHeads + kHeads) * kDim;
  v_slice.strides[0] = kRow;
  EXPECT_EQ(run(k_slice, v_slice), expected);
  EXPECT_EQ(run(k_slice, dense.v), expected);  // only K strided
  EXPECT_EQ(run(dense.k, v_slice), expected);  // only V strided
  EXPECT_EQ(run(dense.k, dense.v), expected);  // and dense again

  // Base pointers off by 4, 8 and 16 bytes.
  for (const size_t shift : {1U, 2U, 4U}) {
    std::vector<float> moved(append.k.size() + shift, std::nanf(""));
    std::ranges::copy(append.k, moved.begin() + static_cast<int64_t>(shift));
    ConstTensorView k = dense.k;
    k.data = moved.data() + shift;
    EXPECT_EQ(run(k, dense.v), expected);
  }

  // Heads transposed: [H, T, D] seen as [T, H, D].
  std::vector<float> transposed(append.k.size());
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t h = 0; h < kHeads; ++h) {
      std::copy_n(&append.k[static_cast<size_t>((t * kHeads + h) * kDim)], kDim,
                  &transposed[static_cast<size_t>((h * kTokens + t) * kDim)]);
    }
  }
  ConstTensorView k_transposed = dense.k;
  k_transposed.data = transposed.data();
  k_transposed.strides = {kDim, kTokens * kDim, 1};
  EXPECT_EQ(run(k_transposed, dense.v), expected);

  // One row for all heads and tokens (stride 0).
  for (size_t i = 0; i < append.k.size(); ++i) append.k[i] = append.k[i % kDim];
  append.pages = before;
  const std::vector<uint8_t> expected_broadcast = append.expected_pages();
  ConstTensorView k_row = dense.k;
  k_row.strides = {0, 0, 1};
  EXPECT_EQ(run(k_row, dense.v), expected_broadcast);

  // Slots with a stride.
  std::vector<int64_t> wide;
  for (const int64_t slot : append.slots) wide.insert(wide.end(), {slot, -7});
  AppendArgs args = append.args();
  args.slots = ConstTensorView(wide.data(), DType::kI64, {kTokens});
  args.slots.strides[0] = 2;
  append.pages = before;
  args.pages.data = append.pages.data();
  append_kv(args);
  EXPECT_EQ(append.pages, expected_broadcast);
}

}  // namespace
}  // namespace quaver
